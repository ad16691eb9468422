"""The PostgreSQL that comes with `pip install`, started when no database is configured.

    <data_dir>/pgdata         the cluster, and the socket in it: 0700 and owned by the server
    <data_dir>/postgres-18.4  its programs, if the server's account cannot run the originals
    <data_dir>/postgres.log   what it said since its last start (.1: before that)
    <data_dir>/lock           locked by the server and all its processes, for as long as one lives

The server must not outlive its owner. The owner uses `with Embedded(...)` in its main thread,
and turns SIGTERM into an exception, such as SystemExit, that unwinds it; Ctrl-C is one already
and does not reach the server, which has a session of its own. If the owner is killed, the kernel
tells the server to stop, which on Linux also happens when the *thread* that started it ends.
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import quote

import psycopg

from app.logs import logger
from app.storage import postgres_binaries
from app.storage.postgres_binaries import Account, Binaries, EmbeddedError

__all__ = ["Cluster", "Embedded", "EmbeddedError"]

NAME = "shiftwatch"  # of the database and of its only role
PORT = 5432  # of no network: it only names the socket
SETTINGS = {
    "listen_addresses": "",
    # Relative to the data directory, so that no path is too long or too odd for a socket.
    "unix_socket_directories": ".",
    "port": str(PORT),
    "timezone": "UTC",
    "log_timezone": "UTC",
    # An error is told to the client that made it; the log keeps what concerns the server.
    "log_min_messages": "log",
    "log_checkpoints": "off",
}
START_SECONDS = 120.0  # crash recovery reads up to max_wal_size, 1 GB
ORPHAN_SECONDS = 1.0  # idle orphans leave in milliseconds, one in a long query does not
KILL_SECONDS = 5.0
LONGEST_SOCKET_PATH = 103  # bytes; Linux allows 107
NOBODY = 65534

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    url: str
    pid: int
    owned: bool


class Embedded:
    """Owns the server of one data directory, or shares that of the process which does."""

    def __init__(
        self,
        data_dir: Path,
        pg_bin: Path | None = None,
        say: Callable[..., Any] = log.info,
    ) -> None:
        self._home = data_dir.resolve()
        self._pgdata = self._home / "pgdata"
        self._log = self._home / "postgres.log"
        self._pg_bin = pg_bin
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._cluster: Cluster | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> Cluster:
        if self._cluster is None or not self.alive():
            try:
                self._cluster = self._start_or_attach()
            except (OSError, psycopg.Error) as error:
                raise EmbeddedError(
                    f"cannot keep a database in {self._home} ({error}): "
                    "choose another directory with SHIFTWATCH_DATA_DIR"
                ) from error
        return self._cluster

    def alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return self._cluster is not None and self._served()

    def recover(self) -> Cluster:
        """Start again what has died; all that was committed is still there."""
        pid = self._cluster.pid if self._cluster else None
        self._say("PostgreSQL has died, starting it again", pid=pid)
        self.stop()
        return self.start()

    def stop(self) -> None:
        """End the server if it is ours, and wait until it has written all down."""
        if self._process is not None:
            _end(self._process)
            with contextlib.suppress(FileNotFoundError), self._lock() as lock:
                if lock is not None:  # else another process already runs a server here
                    self._clean_up()
        self._process = self._cluster = None

    def _clean_up(self) -> None:
        self._alias().unlink(missing_ok=True)
        postgres_binaries.forget_copies(self._home)

    def _start_or_attach(self) -> Cluster:
        """Whoever gets the lock starts the server; the others wait until it can be reached."""
        account = self._account()
        if not self._home.exists():
            self._home.mkdir(parents=True, exist_ok=True)
            self._home.chmod(0o700 if account.uid is None else 0o711)  # whatever the umask
        began = time.monotonic()
        while time.monotonic() < began + START_SECONDS:
            with self._lock() as lock:
                if lock is not None:
                    return self._launch(account, lock)
            if cluster := self._attached():
                return cluster
            if time.monotonic() > began + ORPHAN_SECONDS:
                self._end_orphans()
            time.sleep(0.02)
        raise EmbeddedError(
            f"another process holds {self._home / 'lock'} but serves no database: "
            "end it, or choose another directory with SHIFTWATCH_DATA_DIR"
        )

    def _account(self) -> Account:
        """Root steps down to the owner of the cluster, or to nobody. No account is made."""
        owner = self._owner()
        if os.geteuid() != 0:
            if owner not in (None, os.geteuid()):
                raise EmbeddedError(
                    f"{self._pgdata} belongs to user {owner}: run as that user, "
                    "or choose another directory with SHIFTWATCH_DATA_DIR"
                )
            return Account()
        with contextlib.suppress(KeyError):
            entry = pwd.getpwuid(owner) if owner else pwd.getpwnam("nobody")
            return Account(entry.pw_uid, entry.pw_gid)
        return Account(owner or NOBODY, NOBODY)

    def _owner(self) -> int | None:
        try:
            status = self._pgdata.lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o027:
            raise EmbeddedError(f"{self._pgdata} must be a directory that only its owner can use")
        return status.st_uid

    @contextlib.contextmanager
    def _lock(self, how: int = fcntl.LOCK_EX) -> Iterator[int | None]:
        """The data directory's lock, or None while somebody else has it.

        The server inherits it, and its processes from the server. So it tells of a starting
        process, a server and orphans of a killed one alike, and nothing is left of it when they
        are gone, unlike of a file with a process id.
        """
        lock = os.open(self._home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield lock if _flock(lock, how) else None
        finally:
            os.close(lock)

    def _served(self) -> bool:
        with self._lock(fcntl.LOCK_SH) as lock:
            return lock is None

    def _attached(self) -> Cluster | None:
        if self._postmaster()[1] != "ready":
            return None
        try:
            self._connect(NAME).close()
        except psycopg.OperationalError:
            return None
        return Cluster(self._url(), self._postmaster()[0], owned=False)

    def _launch(self, account: Account, lock: int) -> Cluster:
        found = postgres_binaries.find(self._pg_bin)
        binaries = postgres_binaries.runnable(found, account, self._home)
        if not (self._pgdata / "PG_VERSION").exists():
            self._create(binaries, account, lock)
        self._check_version(binaries)
        self._drop_stale_pid()
        options = [f"--{name}={value}" for name, value in SETTINGS.items()]
        self._process = self._spawn(binaries.bin / "postgres", options, self._pgdata, account, lock)
        try:
            self._wait_until_ready(self._process)
            self._create_database()
            return Cluster(self._url(), self._process.pid, owned=True)
        except BaseException:
            _end(self._process)
            self._process = None
            self._clean_up()
            raise

    def _create(self, binaries: Binaries, account: Account, lock: int) -> None:
        """Made aside and renamed when complete, so that a crash half-way leaves nothing."""
        self._say("creating a database", postgresql=binaries.major, place=str(self._home))
        account.check_known()
        new = self._home / "pgdata.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        if account.uid is not None:
            os.chown(new, account.uid, account.gid or -1)
        options = ["--auth-local=trust", "--auth-host=reject", "--encoding=UTF8", "--no-locale"]
        options += ["--data-checksums", "--no-instructions", f"--username={NAME}"]
        with self._spawn(binaries.bin / "initdb", options, new, account, lock) as process:
            try:
                process.wait()
            except BaseException:
                _kill_group(process)
                raise
        if process.returncode != 0:
            raise EmbeddedError(f"PostgreSQL could not make a database: {self._last_words()}")
        new.rename(self._pgdata)
        _sync(self._home)

    def _check_version(self, binaries: Binaries) -> None:
        made_by = (self._pgdata / "PG_VERSION").read_text().strip()
        if made_by != str(binaries.major):
            raise EmbeddedError(
                f"{self._pgdata} was made by PostgreSQL {made_by}, but {binaries.bin} holds "
                f"PostgreSQL {binaries.major}: name the bin directory of a PostgreSQL {made_by} "
                "in SHIFTWATCH_PG_BIN, or choose another directory with SHIFTWATCH_DATA_DIR"
            )

    def _drop_stale_pid(self) -> None:
        """Forget a killed server whose process id some other process has been given since.

        PostgreSQL would take that process for a living server. We hold the lock, so it is none
        of ours; and one started by hand is recognised by its working directory.
        """
        pid, _ = self._postmaster()
        if Path("/proc/self").exists() and not self._works_here(pid):
            (self._pgdata / "postmaster.pid").unlink(missing_ok=True)
            (self._pgdata / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)

    def _spawn(
        self, program: Path, options: list[str], pgdata: Path, account: Account, lock: int
    ) -> subprocess.Popen[bytes]:
        with self._new_log() as log:
            return postgres_binaries.spawn(program, options, pgdata, account, lock, log)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self._postmaster() != (process.pid, "ready"):
            if process.poll() is not None:
                raise EmbeddedError(f"PostgreSQL does not start: {self._last_words()}")
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"PostgreSQL was not ready after {START_SECONDS:.0f} s: {self._last_words()}"
                )
            time.sleep(0.02)

    def _create_database(self) -> None:
        with self._connect("postgres") as conn:
            there = "SELECT FROM pg_database WHERE datname = %s"
            if not conn.execute(there, [NAME]).rowcount:
                conn.execute(f"CREATE DATABASE {NAME}".encode())

    def _postmaster(self) -> tuple[int, str]:
        """The process id in postmaster.pid and the state that server was last in."""
        try:
            lines = (self._pgdata / "postmaster.pid").read_text().splitlines()
            return int(lines[0]), lines[7].strip()
        except (OSError, ValueError, IndexError):
            return 0, ""

    def _end_orphans(self) -> None:
        """End what a killed server left behind: it cannot commit, and a new one must wait for it.

        Processes are listed before the server is looked for: a new one writes its process id
        down before it has children, so none of those can be taken for an orphan.
        """
        children = [int(p.name) for p in Path("/proc").glob("[0-9]*") if _is_backend(p)]
        orphans = [pid for pid in children if self._works_here(pid)]
        if not self._works_here(self._postmaster()[0]):
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGQUIT)

    def _works_here(self, pid: int) -> bool:
        try:
            return os.path.samefile(f"/proc/{pid}/cwd", self._pgdata)
        except OSError:
            return False

    def _connect(self, database: str) -> psycopg.Connection:
        return psycopg.connect(
            host=str(self._socket_dir()),
            port=PORT,
            user=NAME,
            dbname=database,
            connect_timeout=10,
            autocommit=True,
        )

    def _url(self) -> str:
        return (
            f"postgresql+psycopg://{NAME}@/{NAME}?host={quote(str(self._socket_dir()))}&port={PORT}"
        )

    def _socket_dir(self) -> Path:
        """The cluster itself, or a link to it when clients could not use its path."""
        path = os.fsencode(self._pgdata)
        if len(path) + len(f"/.s.PGSQL.{PORT}") <= LONGEST_SOCKET_PATH and _plain(path):
            return self._pgdata
        alias = self._alias()
        with contextlib.suppress(FileExistsError):
            alias.symlink_to(self._pgdata)
        if alias.lstat().st_uid != os.geteuid() or alias.readlink() != self._pgdata:
            raise EmbeddedError(f"{alias} was not made by Shiftwatch: remove it")
        return alias

    def _alias(self) -> Path:
        digest = hashlib.sha256(os.fsencode(self._pgdata)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"{NAME}-{os.geteuid()}-{digest}"

    def _new_log(self) -> IO[bytes]:
        with contextlib.suppress(FileNotFoundError):
            self._log.rename(self._log.with_suffix(".log.1"))
        self._log.touch(mode=0o600, exist_ok=False)
        return self._log.open("ab")

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ask for a fast shutdown, then for an immediate one, then no longer ask."""
    for how, seconds in ((signal.SIGINT, 30), (signal.SIGQUIT, 5), (signal.SIGKILL, 5)):
        server.send_signal(how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
            return


def _kill_group(leader: subprocess.Popen[bytes]) -> None:
    """Kill it with all its children, and wait until none can write a file any more."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            leader.wait(0.02)
        try:
            os.killpg(leader.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def _flock(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_backend(process: Path) -> bool:
    """A child of a PostgreSQL server: those change their command line, the server does not."""
    try:
        return (process / "cmdline").read_bytes().startswith(b"postgres: ")
    except OSError:
        return False


def _plain(path: bytes) -> bool:
    """Free of what a connection string cannot quote: libpq splits hosts at commas."""
    return b"," not in path and path.decode(errors="ignore").encode() == path


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
