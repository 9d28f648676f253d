"""The newcomer's page does what it says: its files, its two tasks, and what passes them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ascent.rewards.code import CodeReward
from ascent.sandbox import Sandbox
from ascent.tasks.loading import load_tasks

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "first-steps.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_works(tmp_path: Path) -> None:
    script = next(block for block in blocks("python") if "write_tasks" in block)
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "src")}, check=True)
    changed, mine = blocks("json")
    file = tmp_path / "my_tasks.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    old = load_tasks(file).tasks[7]
    file.write_text("\n".join([*lines[:7], changed.strip(), *lines[8:], mine.strip()]) + "\n", encoding="utf-8")
    loaded = load_tasks(file)
    assert not loaded.rejected
    assert len(loaded.tasks) == 25, "24 and one's own"
    new, own = loaded.tasks[7], loaded.tasks[-1]
    assert new.id == old.id == "builtin/keys/above-7/2", "the page says which line it is"
    assert own.id == "mine/1"
    held_out = load_tasks(tmp_path / "my_held_out.jsonl").tasks
    assert len(held_out) == 48
    assert not {task.prompt for task in held_out} & {task.prompt for task in loaded.tasks}
    with Sandbox(slots=1, nice=0) as sandbox:
        reward = CodeReward([new, own], sandbox=sandbox)
        code = "\n    return [k for k, v in d.items() if v {}]"
        given = reward([code.format(">= 7"), code.format("> 7"), code.format("<= 6")], [new.id, new.id, own.id])
    assert given[0] == given[2] == 1.0
    assert given[1] is not None
    assert given[1] < 1.0
