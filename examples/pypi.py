#!/usr/bin/env python3
"""Runs a program from a PyPI package in an environment of its own, with Python alone.

    python3 examples/pypi.py PACKAGE[==VERSION] [ARGUMENT...]

The program is the one that has the package's name. The environment is kept in the cache folder,
so that only the first start needs the network. Where uv is installed, `uvx PACKAGE` does the same.
"""

import fcntl
import os
import pathlib
import re
import subprocess
import sys
import venv


def environment(package: str) -> pathlib.Path:
    """Makes the environment of a package once, also when two programs start at the same time."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / "springline" / "pypi" / version / re.sub(r"[^A-Za-z0-9.=_-]", "_", package)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            venv.create(folder / "env", clear=True, with_pip=True)
            # Standard output belongs to the protocol.
            subprocess.run(
                [folder / "env/bin/python", "-m", "pip", "install", "--quiet",
                 "--disable-pip-version-check", package],
                stdout=sys.stderr, stdin=subprocess.DEVNULL, check=True)
            (folder / "done").touch()
    return folder / "env"


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    package, arguments = sys.argv[1], sys.argv[2:]
    name = re.split(r"[=<>~!\[; ]", package, maxsplit=1)[0]
    try:
        program = environment(package) / "bin" / name
        # The program takes this one's place, so that signals and exit statuses are its own.
        os.execv(program, [program, *arguments])
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"could not start {package}: {error}")


if __name__ == "__main__":
    main()
