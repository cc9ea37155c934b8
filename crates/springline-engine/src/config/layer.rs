//! The layers above the files: environment variables, then flags.
//!
//! Owns how one layer is put on another. It must not know what a setting means.

use std::path::PathBuf;

use super::Overrides;
use super::default::{DECLARATIONS, Home, declaration};
use super::environment::Environment;
use super::place::{Place, Problem};
use super::value::{Given, Layer, from_text, wrong_text};

/// Puts `newer` on `older`: a value replaces a value, named values are replaced name by name.
pub(crate) fn merge(older: &mut Layer, newer: Layer) {
    for (key, (place, given)) in newer {
        match (older.get_mut(key), given) {
            (Some((at, Given::Secrets(values))), Given::Secrets(more)) => {
                *at = place;
                values.extend(more);
            }
            (_, given) => {
                older.insert(key, (place, given));
            }
        }
    }
}

/// Puts the variables of the table on the layer. A variable that is set but empty counts as unset.
pub(crate) fn environment(layer: &mut Layer, environment: &dyn Environment) -> Result<(), Problem> {
    for declared in DECLARATIONS {
        let Some(name) = declared.variable else {
            continue;
        };
        let Some(value) = environment.var(name).filter(|value| !value.is_empty()) else {
            continue;
        };
        let place = Place::Variable(name);
        let given = value.to_str().map(|text| from_text(declared, text, &place));
        match given {
            Some(Ok(given)) => layer.insert(declared.key, (place, given)),
            Some(Err(Some(problem))) => return Err(problem),
            Some(Err(None)) | None => return Err(wrong_text(declared, &place)),
        };
    }
    Ok(())
}

/// Puts the flags on the layer.
pub(crate) fn overrides(layer: &mut Layer, overrides: &Overrides) -> Result<(), Problem> {
    if let (Some(text), Some(declared)) = (&overrides.listen, declaration(Home::Top, "listen")) {
        let place = Place::Flag("--listen");
        match from_text(declared, text, &place) {
            Ok(given) => layer.insert("listen", (place, given)),
            Err(Some(problem)) => return Err(problem),
            Err(None) => return Err(wrong_text(declared, &place)),
        };
    }
    let mut path = |key, flag, path: &Option<PathBuf>| {
        if let Some(path) = path {
            layer.insert(key, (Place::Flag(flag), Given::Path(path.clone())));
        }
    };
    path("socket", "--socket", &overrides.socket);
    path("stateDir", "--state-dir", &overrides.state_dir);
    Ok(())
}
