"""The launcher (C) on a simulated machine, beside the agent's own reading of the same request.

`launcher.c` runs the launcher's whole main(). Here it is a library, so that its answer can be
compared; under the sanitizers it is a program of its own, which libFuzzer or a plain loop feeds.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from cni import wire
from cni.build import FLAGS
from cni.request import Verb, check_text, check_variables, check_wait, parse_verb
from netmgr import programs
from netmgr.errors import InvalidEnvironment, InvalidNetworkConfig
from tests.fuzz.mutation import Shape
from tests.fuzz.of_cni import TOKENS
from tests.fuzz.target import target

SOURCE = Path(__file__).with_name("launcher.c")
SANITIZED = "launcher-sanitized"
"""The target that is a program of its own."""

SANITIZERS = (
    "-g",
    "-O1",
    "-fno-omit-frame-pointer",
    "-fno-sanitize-recover=all",
    "-fsanitize=address,undefined",
)
LONGEST = 4096

NEVER, NO_PATH_FILE = 0xFF, 0xFE
AWAY = bytes([NEVER, NO_PATH_FILE, 0, 0])
"""A machine without an agent, where every call goes well."""

BAD_ENVIRONMENT, BAD_CONFIG, TRY_AGAIN, NOT_AVAILABLE = 4, 7, 11, 50


class _Outcome(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_int),
        ("output_length", ctypes.c_size_t),
        ("kept_length", ctypes.c_size_t),
        ("sent_length", ctypes.c_size_t),
        ("is_kept", ctypes.c_bool),
        ("output", ctypes.c_char * (5 << 20)),
        ("kept", ctypes.c_char * (2 << 20)),
    )

    @property
    def printed(self) -> bytes:
        return ctypes.string_at(ctypes.addressof(self) + _Outcome.output.offset, self.output_length)

    @property
    def del_kept(self) -> bytes:
        return ctypes.string_at(ctypes.addressof(self) + _Outcome.kept.offset, self.kept_length)


def build(to: Path, *arguments: str, compiler: str = "cc") -> None:
    """Compile the simulated launcher."""
    language = next(flag for flag in FLAGS if flag.startswith("-std="))
    command = (
        programs.locate(compiler, compiler),
        language,
        *arguments,
        "-o",
        str(to),
        str(SOURCE),
    )
    done = programs.run(command, timeout=120)
    assert done.returncode == 0, done.stderr.decode()


@functools.cache
def _program() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="netmgr-fuzz-"))
    atexit.register(shutil.rmtree, folder)
    build(folder / "launcher", *SANITIZERS, "-DALONE")
    return folder / "launcher"


def run_sanitized(inputs: Iterable[bytes]) -> int:
    """Run inputs under the sanitizers, without a coverage engine; how many there were.

    Raises:
        AssertionError: one is at fault; the sanitizer's report is the message.
    """
    framed = b"".join(len(data).to_bytes(4, "big") + data for data in inputs)
    done = programs.run((_program(),), stdin=framed, timeout=300)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[:4000]
    return int(done.stdout.split()[0])


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "launcher.so")
        build(
            path,
            "-O1",
            "-shared",
            "-fPIC",
            "-fsanitize=undefined",
            "-fsanitize-undefined-trap-on-error",
        )
        library = ctypes.CDLL(str(path))
    library.launcher_run.restype = ctypes.POINTER(_Outcome)
    library.launcher_run.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    return library


def _run(schedule: bytes, reply: bytes, frame: bytes) -> _Outcome:
    data = bytes([len(schedule)]) + schedule + len(reply).to_bytes(2, "big") + reply + frame
    outcome: _Outcome = _library().launcher_run(data, len(data)).contents
    return outcome


@target(Shape.WIRE, rounds=1500, tokens=TOKENS)
def launcher(data: bytes) -> None:
    """Alone, the launcher refuses what the agent would refuse for its variables, and nothing else.

    A DEL that it keeps is the request byte for byte; what the agent replies is passed on as it is.
    """
    frame = _framed(data)
    outcome = _run(AWAY, b"", frame)
    # The next run overwrites it.
    output, kept = outcome.printed, outcome.del_kept
    environment, stdin = _read(frame)
    wanted = _expected(environment, stdin, is_text=_is_text(frame))
    if 0 in wanted:
        assert outcome.code == 0
        is_del = environment["CNI_COMMAND"] == Verb.DEL
        assert outcome.is_kept == is_del
        assert is_del or "supportedVersions" in json.loads(output)
    else:
        assert (outcome.code, outcome.is_kept) == (1, False)
        assert json.loads(output)["code"] in wanted
    if outcome.is_kept:
        sent, rest = wire.decode_request(kept)
        assert sent.pop(wire.STARTED).isdecimal()
        assert (sent, rest) == (
            {name: value for name, value in environment.items() if name != wire.STARTED},
            stdin,
        )
    _passes_on(frame, environment)


def _passes_on(frame: bytes, environment: Mapping[str, str]) -> None:
    if not _is_text(frame) or environment.get("CNI_COMMAND") == Verb.VERSION:
        return
    for reply in (b"0\n", b"1\n{}", b"255\n\0\xff"):
        outcome = _run(bytes([0, NO_PATH_FILE, 0, 0]), reply, frame)
        code, _, output = reply.partition(b"\n")
        assert outcome.code == int(code)
        assert outcome.printed == output


def _framed(data: bytes) -> bytes:
    """Variables with a NUL behind each, an empty one, and standard input."""
    _, _, rest = data.partition(b"\0")
    head, end, stdin = rest.partition(b"\0\0")
    return head + b"\0\0" + stdin if end else rest + b"\0\0"


def _read(frame: bytes) -> tuple[dict[str, str], bytes]:
    """What the agent gets of it: of a variable that comes twice the first, as getenv(3) does."""
    if frame.startswith(b"\0"):
        return {}, frame[1:]
    head, _, stdin = frame.partition(b"\0\0")
    environment: dict[str, str] = {}
    for entry in head.split(b"\0"):
        if entry.startswith(b"CNI_") and b"=" in entry:
            name, _, value = entry.partition(b"=")
            environment.setdefault(name.decode(*wire.CODING), value.decode(*wire.CODING))
    return environment, stdin


def _is_text(frame: bytes) -> bool:
    """Whether all variables are UTF-8: each is looked at, also one that an earlier one hides."""
    head, _, _ = frame.partition(b"\0\0")
    sent = (entry for entry in head.split(b"\0") if entry.startswith(b"CNI_") and b"=" in entry)
    try:
        return all(entry.decode() or True for entry in sent)
    except UnicodeDecodeError:
        return False


def _expected(environment: Mapping[str, str], stdin: bytes, *, is_text: bool) -> Collection[int]:
    """The codes that the launcher may answer by itself, by the agent's rules; 0 is success."""
    if environment.get("CNI_COMMAND") == Verb.VERSION:
        return {0}
    if not is_text or _is_refused(environment):
        return {BAD_ENVIRONMENT}
    match parse_verb(environment):
        case Verb.DEL:
            return {0}
        case Verb.STATUS:
            return {NOT_AVAILABLE}
        case Verb.ADD:
            return _codes_of_wait(stdin)
        case _:
            return {TRY_AGAIN}


def _is_refused(environment: Mapping[str, str]) -> bool:
    """Whether the agent refuses the variables."""
    try:
        check_text(environment)
        check_variables(parse_verb(environment), environment)
    except InvalidEnvironment:
        return True
    return False


def _codes_of_wait(stdin: bytes) -> Collection[int]:
    """Of an ADD that waits, or has an odd `wait`."""
    # The launcher has no JSON parser. It reads as the agent does what runtimes write: without
    # escapes in the way, and each key once.
    either = {BAD_CONFIG, TRY_AGAIN}
    if b"\\" in stdin or b"-0" in stdin or not stdin.isascii() or b"\0" in stdin:
        return either
    try:
        config = json.loads(stdin, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return either
    try:
        check_wait(config.get("wait", 0) if isinstance(config, dict) else 0)
    except InvalidNetworkConfig:
        return {BAD_CONFIG}
    return {TRY_AGAIN}


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found
