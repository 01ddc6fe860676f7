"""`assay card diff`, `submit` and `verify` compare cards, send them to others, and try those that were received."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from assay import api
from assay.command.card_request import MIXERS, SEEDS, check_promises, chosen, parser_of, request_of
from assay.command.flags import Parser
from assay.command.progress import say
from assay.core.errors import UserError
from assay.core.files import DAMAGE, check_writable, reason
from assay.core.foreign import Source, read_source
from assay.core.store import Store
from assay.train.numerics import numerics_for

if TYPE_CHECKING:
    from assay.card.battery import Records, Trial
    from assay.card.judge import Difference
    from assay.card.running import Runner

UNTRIED = 3
"""The exit code where a submission contradicts nothing, and nothing of it was computed again."""
LAST = 2000
"""Bytes of what a stranger's process said that are read."""


def diff(words: list[str]) -> int:
    """Say, question by question, which of two cards is better, each a file of `assay card MIXER --json`; the exit code
    is 1 where the second is worse."""
    from assay.card.exchange import changes, read_card

    parser = Parser(prog="assay card diff", description=diff.__doc__)
    parser.add_argument("before", type=Path, help="the card to compare with")
    parser.add_argument("after", type=Path, help="the card that may be better or worse")
    args = parser.parse_args(words)
    before, after = read_card(args.before), read_card(args.after)
    names = [str(card.get("mixer") or card.get("method")) for card in (before, after)]
    if names[0] == names[1]:  # two versions of one: their files tell them apart
        files = (args.before, args.after)
        names = [file.stem if args.before.stem != args.after.stem else str(file) for file in files]
    try:
        found = changes(before, after)
        means = [
            [fmean(card["questions"][each.other]["scores"].values()) for card in (before, after)] for each in found
        ]
    except (ArithmeticError, ValueError) as error:  # no scores, no deviation, or numbers that are too large
        raise UserError(f"the cards do not compare: {reason(error)}.") from None
    for each, scores in zip(found, means, strict=True):
        print(_change(each, names, scores))
    if found:
        second = f"{names[1]} is better (+) or worse (-)"
        print(f"intervals: by how much {second}, each of one question alone; p: of all questions together (Holm)")
    gone = False
    for name in dict.fromkeys([*before["questions"], *after["questions"]]):
        if name in {each.other for each in found}:
            continue
        one, two = (card["questions"].get(name) for card in (before, after))
        if one and two and one["comparable"] and not two["scores"]:
            gone = True
            print(f"worse   {name}: {names[1]} has no score, since its runs failed or diverged")
        else:
            why = "in one of them runs failed or diverged, or its rate is not settled"
            print(f"{'-':<7} {name}: not compared, {why if one and two else 'only one of the cards asks it'}")
    return int(gone or any(each.standing == "below" for each in found))


def _change(each: "Difference", names: Sequence[str], scores: Sequence[float]) -> str:
    """Say who is better in one question, by name, with both scores; names and scores are of before and after."""
    before, after = (f"{name} {score:.3f}" for name, score in zip(names, scores, strict=True))
    mean, low, high = each.gain.mean, each.gain.low or 0.0, each.gain.high or 0.0
    match each.standing:
        case "above":
            told = f"better  {each.other}: {after} is better than {before}, by {mean:.3f} [{low:.3f}, {high:.3f}]"
        case "below":
            told = f"worse   {each.other}: {before} is better than {after}, by {-mean:.3f} [{-high:.3f}, {-low:.3f}]"
        case "level":
            gap = f"{mean:+z.3f} [{low:+z.3f}, {high:+z.3f}] for {names[1]}"
            told = f"level   {each.other}: {before} and {after} are not told apart, {gap}"
    return f"{told}, p {each.p:.2g}"


def submit(words: list[str]) -> int:
    """Write a mixer's file, every record and its card into a folder, for a pull request."""
    from assay.card.exchange import pack
    from assay.card.making import made
    from assay.card.mixer_battery import field_of, runner_of
    from assay.card.running import reader

    parser = parser_of("card submit", submit.__doc__ or "")
    parser.add_argument("file", type=Path, help="the Python file of one mixer")
    parser.add_argument("folder", type=Path, help="the folder to write")
    parser.add_argument("--seeds", type=int, metavar="N", help=SEEDS)
    args = parser.parse_args(words)
    if ":" in args.file.name:
        raise UserError(f"'{args.file}': submit a file as it is; an option of its mixer is a default in that file.")
    check_writable(args.folder / "card.json")
    mine, foreign = _mixers(args.file)
    if len(mine) != 1:
        raise UserError(f"'{args.file}' has {len(mine)} mixers ({', '.join(mine)}): submit one per file.")
    request = request_of(args)
    runner = runner_of(request, mine)
    field = field_of(request, mine, runner)
    if runner.numerics != reader(runner.tier).numerics:
        raise UserError(
            f"--tier {runner.tier.name} is of {runner.tier.device}: records of other devices are not compared."
        )
    check_promises(foreign)
    cards, records = made(mine, field, runner)
    if all(each.answer.lost for each in cards[0].lines):
        raise UserError(f"no question has a score of {mine[0]}: there is nothing to submit.")
    told = {key: value for key, value in cards[0].to_json().items() if key != "speed"}  # it belongs to this machine
    pack(args.folder, args.file, records, {**told, "field": field})
    say(f"wrote {args.folder}: mixer.py, records.jsonl.xz, card.json. `assay card verify {args.folder}` tries them.")
    return 0


def verify(words: list[str]) -> int:
    """Try a submitted folder, and run none of its code: its records are runs of its file in this protocol, and its card
    follows from them (`consistent, not recomputed`, exit code 3). With --run-code one of its runs, drawn now, is
    computed again (`verified`)."""
    from assay.card import exchange
    from assay.card.making import made
    from assay.card.mixer_battery import with_seeds
    from assay.card.protocol import TIERS
    from assay.card.running import reader

    parser = Parser(prog="assay card verify", description=verify.__doc__)
    parser.add_argument("folder", type=Path, help="a folder that `assay card submit` wrote")
    about = "run its mixer.py, a stranger's program, with your rights: read it first"
    parser.add_argument("--run-code", action="store_true", help=about)
    args = parser.parse_args(words)
    card = exchange.read_card(args.folder / exchange.FILE, exchange.SUBMITTED, "assay card submit FILE FOLDER")
    exchange.check_kind(card)
    mixer, field = card["mixer"], card["field"]
    source, packed = read_source(args.folder / exchange.MIXER), exchange.packed_records(args.folder)
    runner = reader(with_seeds(TIERS[card["tier"]], len(card["seeds"]), [mixer]))
    runner.read_shipped.update((word, name) for name, words in card["shipped"].items() for word in words)

    def look(trials: "Sequence[Trial]") -> "Records":
        there = runner.only_shipped([trial for trial in trials if (trial.mixer, trial.question) in runner.read_shipped])
        runs = {trial: runner.run_of(trial) for trial in trials if trial not in there}
        if lost := [trial for trial, run in runs.items() if run.id not in packed]:
            raise UserError(f"no record is of {lost[0]}: they are of another file, protocol or device.")
        return there | {trial: packed[run.id] for trial, run in runs.items()}

    try:
        runner.know(mixer, source.sha256, packed.values())
        disagreed = [name for name, each in card["anchors"].items() if not each["agree"]]
        cards, found = made([mixer], field, runner, look, disagreed)
        if not exchange.follows(json.loads(json.dumps(cards[0].to_json() | {"field": field})), card):
            raise UserError(f"{args.folder}/{exchange.FILE} does not follow from its records.")
        own = {trial: record for trial, record in found.items() if trial.mixer == mixer}
        others = [record for trial, record in found.items() if trial not in own]
        if twins := exchange.copied(own.values(), [*others, *runner.shipped.values()]):
            raise UserError("{} has the losses of another mixer: {} those of {}.".format(args.folder, *twins))
    except DAMAGE as error:
        told = f"{type(error).__name__}: {reason(error)}"
        raise UserError(f"{args.folder} has a record that no run wrote, {told}.") from None
    say(f"records: {len(packed)}, of this file and protocol, and the card follows from them")
    device, about = runner.tier.device, "nothing was computed again"
    if not args.run_code:
        say(f"{about}: --run-code runs {source.path}, a stranger's program. Read it first.")
    elif device != "cpu" and numerics_for("auto").device != device:
        say(f"{about}: its runs are of {device}, which is not here")
    else:
        scored = [trial for trial in own if trial.seed in runner.tier.seeds_of(mixer)]
        _again(secrets.choice(scored), own, source, runner)  # nobody can know which
        print("verified")
        return 0
    print("consistent, not recomputed")
    return UNTRIED


PATIENCE, SLOWER = 600.0, 20.0
"""Seconds for a stranger's process, and how many times as long as the record says it may take besides."""


def _again(trial: "Trial", own: "Records", source: Source, runner: "Runner") -> None:
    """Compute a run again, and compare. The stranger's code runs in a process of its own, of which the record counts
    alone, whatever it says."""
    from assay.card.battery import SIZES, score

    say(f"warning: {source.path} runs now, with your rights: computing {trial} again")
    run, question, told = runner.run_of(trial), runner.tier.question(trial.question), own[trial]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, (Path(folder) / "said").open("w+b") as said:
        file = Path(folder) / "mixer.py"
        file.write_text(source.text, encoding="utf-8")
        placing = {"out": folder, "device": run.numerics.device, "backend": run.numerics.backend, "executor": "serial"}
        asked = json.dumps({**run.options, "seeds": [run.seed], **placing})
        command = [sys.executable, "-P", "-c", f"from {__name__} import again; again({str(file)!r}, {asked!r})"]
        begun = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
        try:
            begun.wait(timeout=PATIENCE + SLOWER * float(told.cost.get("seconds") or 0.0))
        except subprocess.TimeoutExpired:
            said.write(b"\nit ran too long")
        finally:  # with all that it has started
            with suppress(ProcessLookupError):
                os.killpg(begun.pid, signal.SIGKILL)
            begun.wait()
        record = Store(folder).get(run)
        said.seek(max(0, said.seek(0, os.SEEK_END) - LAST))
        last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
    if record is None:
        raise UserError(f"{trial} was not computed again: its process left no such record, and said '{last}'.")
    one, two = score(told, question), score(record, question)
    sizes = [{name: each.metrics.get(name) for name in SIZES} for each in (told, record)]
    if record.status != told.status or abs(one - two) > question.margin or sizes[0] != sizes[1]:
        raise UserError(f"computed again, {trial} scores {two:.3f} ({record.status}), and the record says {one:.3f}.")
    say(f"computed again: {trial.question} at rate {trial.rate:g}, seed {trial.seed}: {two:.3f}, recorded {one:.3f}")


def again(file: str, options: str) -> None:
    """Try the promises of a stranger's mixer, and compute one of its runs, in a process of its own."""
    check_promises(_mixers(Path(file))[1])
    api.run("icl", **json.loads(options))


def _mixers(file: Path) -> tuple[list[str], list[str]]:
    """Return the mixers of a file, as words, twice: those asked for and those whose promises are to be tried."""
    folder, mine, foreign = chosen([str(file)])
    if folder != MIXERS:
        raise UserError(f"'{file}' has attention methods: cards of mixers alone can be submitted.")
    return mine, foreign
