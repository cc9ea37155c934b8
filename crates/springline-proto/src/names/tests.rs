use super::*;
use crate::method::ListKind;
use crate::random::Random;

#[test]
fn a_short_plain_name_is_kept() {
    assert_eq!(
        tool_name("time", "get_current_time"),
        "time__get_current_time"
    );
    assert_eq!(tool_name("a-b", "x.y-Z"), "a-b__x.y-Z");
    assert_eq!(tool_name("a", &"x".repeat(61)).len(), 64);
    assert_eq!(tool_name("a", ""), "a__");
}

#[test]
fn a_long_or_stray_name_is_cut_and_ends_in_its_digest() {
    // echo -n NAME | sha256sum
    assert_eq!(tool_name("a", "read file"), "a__read_file_1214148e");
    assert_eq!(tool_name("a", "größe"), "a__gr__e_d353a267");
    let long = tool_name("a", &"x".repeat(62));
    assert_eq!(long, format!("a__{}_21210f96", "x".repeat(52)));
    let longest = tool_name(&"s".repeat(SERVER_NAME_MAX), &"é".repeat(90));
    assert_eq!(longest.len(), TOOL_NAME_MAX);
    assert_ne!(tool_name("a", "x y"), tool_name("a", "x/y"));
}

#[test]
fn every_name_is_callable_and_is_found_again() {
    let mut random = Random::new(41);
    let servers = [
        "a",
        "a_",
        "my-server",
        "_",
        "x_y",
        "sssssssssssssssssssssssssssssss_",
    ];
    let parts = [
        "x",
        "_",
        "__",
        ".",
        "-",
        " ",
        "é",
        "/",
        "a_long_word_of_a_tool_name",
        "9",
    ];
    for _ in 0..5_000 {
        let server = random.pick(&servers);
        let tool: String = (0..random.below(7)).map(|_| random.pick(&parts)).collect();
        let name = tool_name(server, &tool);
        assert!(
            name.len() <= TOOL_NAME_MAX && name.chars().all(is_tool_char),
            "{name}"
        );
        assert!(names_tool(&name, server, &tool), "{server} {tool}");
        assert!(
            tool_name_splits(&name).any(|(found, _)| found == server),
            "{name}"
        );
        assert!(!names_tool(&name, server, "another"));
        assert!(!names_tool(&name, "other", &tool));
    }
}

#[test]
fn names_are_split_where_the_server_ends() {
    assert_eq!(split_tool_name("time__now"), Some(("time", "now")));
    assert_eq!(split_tool_name("a__b__c"), Some(("a", "b__c")));
    assert_eq!(split_tool_name("now"), None);
    assert_eq!(split_tool_name("__now"), None);
    assert_eq!(split_tool_name("b d__now"), None);
    assert_eq!(split_tool_name(""), None);
    assert_eq!(split_tool_name("é__x"), None);
    let both: Vec<_> = tool_name_splits("a___b").collect();
    assert_eq!(both, [("a", "_b"), ("a_", "b")]);
}

#[test]
fn a_part_that_should_have_been_cut_is_not_the_listed_name() {
    let tool = "x".repeat(80);
    assert!(!names_tool(&format!("a__{tool}"), "a", &tool));
    assert!(!names_tool("a__x y", "a", "x y"));
}

#[test]
fn resource_uris_are_reversible() {
    for original in [
        "file:///a b/é?x#y",
        "",
        "/",
        "x://{id}/{+path}{?q*}",
        "springline://b/y",
    ] {
        let uri = resource_uri("a-1", original);
        assert_eq!(uri, format!("springline://a-1/{original}"));
        assert_eq!(split_resource_uri(&uri), Some(("a-1", original)));
    }
    for foreign in [
        "file:///a",
        "springline://",
        "springline://a",
        "springline:///x",
        "springline://a__b/x",
        "SPRINGLINE://a/x",
    ] {
        assert_eq!(split_resource_uri(foreign), None, "{foreign}");
    }
}

#[test]
fn server_names_are_checked_and_a_valid_one_is_suggested() {
    for good in ["a", "_", "-", "Time-2_x", &"x".repeat(32)] {
        assert_eq!(check_server_name(good), Ok(()), "{good}");
    }
    let case = |name: &str, reason, suggestion: &str| {
        let error = check_server_name(name).unwrap_err();
        assert_eq!(
            (error.reason, error.suggestion.as_str()),
            (reason, suggestion)
        );
        assert_eq!(check_server_name(suggestion), Ok(()));
    };
    case("", NameFlaw::Empty, "server");
    case("my server", NameFlaw::Character(' '), "my-server");
    case("io.github/x", NameFlaw::Character('.'), "io-github-x");
    case("a__b", NameFlaw::Separator, "a_b");
    case("é", NameFlaw::Character('é'), "server");
    case(&"y".repeat(33), NameFlaw::TooLong, &"y".repeat(32));
    let shown = check_server_name("a b").unwrap_err().to_string();
    assert!(shown.ends_with("; \"a-b\" would do"), "{shown}");
}

#[test]
fn a_cursor_is_good_for_its_owner_list_and_key_alone() {
    let key = CursorKey::new([7; 32]);
    let cursor = Cursor {
        kind: ListKind::Tools,
        offset: 1000,
    };
    let text = cursor.encode(&key, b"session-1");
    let decode =
        |text: &str, kind, key: &CursorKey, owner: &[u8]| Cursor::decode(text, kind, key, owner);
    assert_eq!(
        decode(&text, ListKind::Tools, &key, b"session-1"),
        Ok(cursor)
    );
    assert_eq!(
        decode(&text, ListKind::Tools, &key, b"session-2"),
        Err(CursorError)
    );
    assert_eq!(
        decode(&text, ListKind::Prompts, &key, b"session-1"),
        Err(CursorError)
    );
    let other = CursorKey::new([8; 32]);
    assert_eq!(
        decode(&text, ListKind::Tools, &other, b"session-1"),
        Err(CursorError)
    );
}

#[test]
fn a_forged_cursor_is_refused() {
    let key = CursorKey::new([7; 32]);
    let text = Cursor {
        kind: ListKind::Tools,
        offset: 3,
    }
    .encode(&key, b"s");
    let refused =
        |text: &str| Cursor::decode(text, ListKind::Tools, &key, b"s") == Err(CursorError);
    for bad in [
        "",
        "x",
        "3",
        "eyJvZmZzZXQiOjN9",
        "AQ==",
        &text[1..],
        &text[..28],
        &format!("{text}AAAA"),
    ] {
        assert!(refused(bad), "{bad}");
    }
    for at in 0..text.len() {
        let mut forged = text.clone().into_bytes();
        forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
        assert!(refused(std::str::from_utf8(&forged).unwrap()), "{at}");
    }
}
