"""What `ascent train` ends with: the curve, the table that proves it, three tasks to look at, and where to go on."""

from __future__ import annotations

import io
import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ascent.memory import measured
from ascent.memory.picture import size
from ascent.models.adapters import is_adapter
from ascent.report.curve_svg import curve_svg
from ascent.report.pass_rates import rate
from ascent.report.results import Change, HeldOutTask, Results, mean, read_results

_BLOCKS = " ▁▂▃▄▅▆▇█"  # a character of a column, by how many eighths of it are filled
_ASCII_BLOCKS = "    #####"
_CURVE_ROWS = 8
_WIDEST_CURVE = 60


def show_ending(run: Path, console: Console | None = None) -> None:
    """Write `curve.svg` into the run directory and print the ending (to standard output, unless `console` is given).

    Raises InputError when the run's files can't be understood.
    """
    results = read_results(run)
    console = console or Console(highlight=False)
    if isinstance(console.file, io.TextIOWrapper):
        console.file.reconfigure(errors="replace")  # prompts and completions may hold any character
    if results.steps:
        (run / "curve.svg").write_text(curve_svg(results), encoding="utf-8")
        console.print(_curve(results, console))
    if results.after:
        console.print(_rates(results))
        console.print(_examples(results))
    console.print(_memory(results.path))
    console.print(_whereabouts(results))
    console.print(_what_next(results.path), soft_wrap=True)  # a command that is cut in two can't be pasted


def _curve(results: Results, console: Console) -> Group:
    """Columns of the training pass rate, each the mean of the steps that fall into it."""
    rates = [step.pass_rate for step in results.steps if step.pass_rate is not None]
    seconds = sum(step.seconds for step in results.steps)
    head = Rule(f"Training: {len(results.steps)} steps in {_duration(seconds)}")
    if not rates:
        return Group(head, Text("no completion could be judged"))
    columns = _buckets(rates, min(_WIDEST_CURVE, console.width - 10))
    marks = _BLOCKS if console.encoding.lower().startswith("utf") else _ASCII_BLOCKS
    lines = []
    for row in reversed(range(_CURVE_ROWS)):
        filled = (min(8, max(0, round((rate * _CURVE_ROWS - row) * 8))) for rate in columns)
        label = f"{(row + 1) / _CURVE_ROWS:.0%}" if (row + 1) % 2 == 0 else ""
        lines.append(f"{label:>6} {''.join(marks[eighths] for eighths in filled)}")
    lines.append(f"{'0%':>6} step 1{f'step {results.steps[-1].number}':>{max(8, len(columns) - 6)}}")
    return Group(head, Text("completions that pass all tests"), Text("\n".join(lines), no_wrap=True))


def _buckets(rates: Sequence[float], most: int) -> list[float]:
    """Means of equal shares of `rates`, at most `most` of them; short runs get several columns a step."""
    if len(rates) < most:
        wide = most // len(rates)
        return [rate for rate in rates for _ in range(wide)]
    edges = [round(at * len(rates) / most) for at in range(most + 1)]
    return [mean(rates[first:end]) for first, end in itertools.pairwise(edges)]


def _rates(results: Results) -> Group:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("family")
    for name in ("tasks", "greedy", "sampled"):
        table.add_column(name, justify="right")
    families = sorted({task.family for task in results.after})
    for family in families if len(families) > 1 else ():
        before, after = ([task for task in half if task.family == family] for half in (results.before, results.after))
        table.add_row(Text(family or "-"), *_row(before, after))
    table.add_row("all", *_row(results.before, results.after), style="bold")
    about = (
        f"Pass rate on {len(results.after)} tasks that were never trained on. "
        f"95 % intervals of the last rates: {_interval(results.after, 'greedy')} greedy, "
        f"{_interval(results.after, 'sampled')} sampled."
    )
    return Group(Text(), Rule("Held-out tasks"), Text(about), Text(), table)


def _row(before: Sequence[HeldOutTask], after: Sequence[HeldOutTask]) -> tuple[str, ...]:
    """Number of tasks, greedy and sampled."""

    def change(kind: str) -> str:
        rates = [f"{mean(getattr(task, kind) for task in half):.0%}" for half in (before, after) if half]
        return " -> ".join(f"{rate:>4}" for rate in rates)

    return str(len(after)), change("greedy"), change("sampled")


def _interval(tasks: Sequence[HeldOutTask], kind: str) -> str:
    found = rate([getattr(task, kind) for task in tasks])
    return f"{100 * found.low:.0f} to {found.high:.0%}"


def _examples(results: Results) -> Group:
    if not results.before:
        return Group()
    best = results.most_improved()
    if not best:
        return Group(Text(), Text("No held-out task improved."))
    parts: list[Text | Rule | Padding] = [Text(), Rule("Most improved tasks, greedy completions")]
    for change in best:
        parts.append(_example(change))
    return Group(*parts)


def _example(change: Change) -> Padding:
    text = Text(f"{_printable(change.after.prompt)}\n", style="bold")
    for when, task, style in (("before", change.before, "red"), ("after", change.after, "green")):
        says = f"{when}, {'passes' if task.greedy else 'fails'}; {task.sampled:.0%} of its samples pass:"
        text.append(f"  {says}\n", style="not bold")
        text.append(f"{_indented(task.completion)}\n", style=f"not bold {style}")
    text.right_crop(1)
    return Padding(text, (1, 0, 0, 0))


def _indented(completion: str) -> str:
    lines = _printable(completion).strip("\n").split("\n") if completion.strip() else ["(nothing)"]
    shown = lines if len(lines) <= 12 else [*lines[:12], f"    ... {len(lines) - 12} more lines"]
    return "\n".join(f"  {line}" for line in shown)


def _printable(text: str) -> str:
    """Without the characters by which a completion could steer the terminal."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def _memory(run: Path) -> Group:
    """The largest peak of each phase beside what was planned, and what memory showed of trouble."""
    kept = measured.read(run)
    if kept is None or not (kept["compared"] or kept["findings"]):
        return Group()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("phase")
    for name in ("measured", "planned", "off"):
        table.add_column(name, justify="right")
    for row in kept["compared"]:
        table.add_row(row["phase"], size(row["measured"]), size(row["planned"]), f"{row['off']:+.0%}")
    told = [Text(_printable(f"- {each['what']}. {each['mend']}")) for each in kept["findings"]]
    about = Text("planned for prompts and completions at their longest")
    return Group(Text(), Rule("Memory, peaks by phase"), about, table, *told)


def _whereabouts(results: Results) -> Group:
    run = results.path
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    files = {
        "model/": f"the trained policy: {'LoRA adapter' if is_adapter(run / 'model') else 'weights'} and tokenizer",
        "report.html": "curves, tasks and completions as one file, for a browser",
        "curve.svg": "the curve above as a picture",
        "evaluation.json": "every held-out task before and after",
        "alarms.jsonl": f"what looked wrong, with samples; also: ascent alarms {shlex.quote(str(run))}",
        "metrics.jsonl": "one line a step: rewards, losses, times",
        "rollouts/": "every completion with its verdict (parquet)",
        "memory.json": "the memory that was planned, and what was taken",
        "config.yaml": "all settings of this run",
    }
    for name, what in files.items():
        if (run / name).exists():
            table.add_row(Text(f"{run}/{name}"), what)
    return Group(Text(), Rule("Where everything lies"), table, Text(), Rule("What next"))


def _what_next(run: Path) -> Text:
    """Commands that can be given as they stand, but for the words in capitals."""
    advice = {
        "look at it": f"ascent report {shlex.quote(str(run))}",
        "own tasks": "tasks.train=my_tasks.jsonl (docs/tasks.md, docs/first-steps.md)",
        "own model": "model.path=FOLDER or a hub id, such as in examples/smollm2_mbpp.yaml",
    }
    if (run / "model").is_dir():
        advice["ask it"] = f"ascent generate {shlex.quote(f'{run}/model')} --prompt PROMPT"
        advice["take it along"] = f"ascent export {shlex.quote(str(run))}"
    advice["Ascend"] = "install as docs/install.md says, ascent doctor, then the same commands"
    return Text("\n".join(f"{name:<15}{what}" for name, what in advice.items()))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
