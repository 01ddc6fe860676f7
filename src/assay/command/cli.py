"""The `assay` command: verbs and studies by name, each imported only when chosen.

    assay expressivity --models SelfAttn GRU --grid noise=0.03,0.3
    assay list encoders | assay check mine.py | assay show ID | assay report

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 a run failed, a promise is
broken or a run to be removed is in use, 2 the command is wrong, 130 interrupted (Ctrl-C), 141 the reader of the tables
left (`| head`), 143 terminated (SIGTERM, which schedulers send), 129 hung up (SIGHUP, of a terminal that was closed);
`assay card verify` has one of its own, 3.
"""

import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from types import FrameType
from typing import TextIO, cast

from assay.command.help import hanging
from assay.command.progress import say
from assay.command.study_command import run_study
from assay.command.verbs import VERBS
from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.core.foreign import load_source, read_source
from assay.core.plugin import Entry, registries
from assay.core.streams import Forgiving

ENDED: dict[int, tuple[str, int]] = {
    signal.SIGTERM: ("terminated", 143), signal.SIGHUP: ("hung up", 129), signal.SIGINT: ("interrupted", 130)
}  # fmt: skip
"""What ended a command, and its exit code, the first where several did."""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    received: list[int] = []
    try:
        with _forgiving_streams(), _noted_signals(received), warnings.catch_warnings():
            warnings.showwarning = lambda message, *rest, **more: say(f"warning: {message}")
            return _answered(words, received)
    except KeyboardInterrupt:  # one that came while the streams or the handlers were set up or taken down
        return _interrupted(received)


def _answered(words: list[str], received: Sequence[int]) -> int:
    """Runs the command and turns whatever ends it into an exit code."""
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return _interrupted(received) if code and received else code
    except UserError as error:
        say(f"assay: {error}")
        return 2
    except KeyboardInterrupt as stopped:
        return _interrupted(received, *getattr(stopped, "__notes__", ()))
    except SystemExit as exit:  # argparse leaves this way
        return exit.code if isinstance(exit.code, int) else 2
    except Exception:
        if received:  # a library turned the interrupt into an error of its own
            return _interrupted(received)
        raise


def _interrupted(received: Sequence[int], *notes: str) -> int:
    """Prints that Ctrl-C or another signal has ended the command, with notes on what is lost; returns the exit code."""
    for number in received:
        signal.signal(number, signal.SIG_IGN)  # a second one must not cut off the message
    ended, code = ENDED[min(received, key=[*ENDED].index, default=signal.SIGINT)]
    say(f"assay: {ended}; every finished run is stored. Repeat the command to resume.")
    for note in notes:
        say(note)
    # An interrupt inside an exec of text, as dataclasses do it, makes Python end itself by SIGINT after
    # `python -m`, though it was caught; the next exec of text clears it.
    exec("")
    return code


@contextmanager
def _forgiving_streams() -> Iterator[None]:
    """Keeps computing when the reader of standard output leaves (`| head`)."""
    out, err = cast(TextIO, Forgiving(sys.stdout, plain=True)), cast(TextIO, Forgiving(sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            with suppress(UserError):  # reported already
                out.flush()


@contextmanager
def _noted_signals(received: list[int]) -> Iterator[None]:
    """Makes SIGTERM, which schedulers send, and SIGHUP end a command as Ctrl-C does, and notes the signals received:
    the exception does not tell them, since libraries catch it and raise one of their own."""
    if threading.current_thread() is not threading.main_thread():  # signal handlers are set there alone
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        raise KeyboardInterrupt

    # A shell's background has SIGINT ignored, and nohup SIGHUP.
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    heeded = [signal.SIGTERM, *(number for number, default in usual.items() if signal.getsignal(number) == default)]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def entry() -> None:
    sys.exit(main())


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["help"] and words[1:]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        from assay import __version__
        from assay.core.run import source_digest

        print(f"assay {__version__}, source {source_digest()}")
        return 0
    words, files = without_plugins(words)
    for path in files:  # before any parser is built: their names must be known to it
        load_source(read_source(path))
    if not words:
        raise UserError("--plugin brings plug-ins to a command: name a study or a verb too.")
    studies = registries()["studies"]
    for length in (2, 1):  # `assay sae ablation` is the study sae.ablation
        name = ".".join(words[:length])
        if name in studies.names() and len(words) >= length:
            return run_study(name, words[length:])
    if words[0] in VERBS:
        return VERBS[words[0]](words[1:])
    if own := [entry for entry in studies.entries() if entry.name.startswith(f"{words[0]}.")]:
        return _family(words[0], words[1:], own)
    if words[0].endswith("measure.py"):  # as a spec runs it
        raise UserError(f"{words[0]} is `assay expressivity` here, with the same flags.")
    known = [*VERBS, *(name.replace(".", " ") for name in studies.names())]
    close = nearest(words[0], [*known, "--version", "--help"])
    raise UserError(f"no command '{words[0]}'.{close} Known: {', '.join(known)}.")


def _family(name: str, rest: Sequence[str], own: Sequence[Entry]) -> int:
    """Lists the commands of a study that has several, each with its question: `assay modular`, also with --help."""
    spelled = {entry.name.replace(".", " "): entry.summary for entry in own}
    if rest and rest[0] not in ("-h", "--help", "help"):
        word = f"{name} {rest[0]}"
        listed = ", ".join(f"'{command}'" for command in spelled)
        raise UserError(f"no command '{word}'.{nearest(word, spelled)} Known: {listed}.")
    print("\n".join(hanging(f"assay {command:<28} ", question) for command, question in spelled.items()))
    return 0


def without_plugins(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Takes the files of --plugin, one per flag, out of the words.

    check --plugin f.py encoders mine  ->  [check, encoders, mine], [f.py]
    """
    rest, files = list(words), list[str]()
    while found := [i for i, word in enumerate(rest) if word == "--plugin" or word.startswith("--plugin=")]:
        flag = rest.pop(found[0])
        if "=" in flag:
            files.append(flag.partition("=")[2])
        elif found[0] < len(rest):
            files.append(rest.pop(found[0]))
        else:
            raise UserError("--plugin needs a file.")
    return rest, files


def _overview() -> str:
    studies = registries()["studies"].entries()
    lines = ["usage: assay COMMAND ...   (assay COMMAND --help says more)", "", "studies:"]
    lines += [hanging(f"  {entry.name.replace('.', ' '):<20} ", entry.summary) for entry in studies]
    lines += ["", "verbs:"]
    lines += [hanging(f"  {name:<20} ", (verb.__doc__ or "").partition("\n")[0]) for name, verb in VERBS.items()]
    return "\n".join(lines)
