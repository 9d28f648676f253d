"""All rules. A new one is a class in a file beside this one, a line here, and its advice in `alarms.advice`."""

from __future__ import annotations

from ascent.alarms.rules.communication import Communication
from ascent.alarms.rules.learning import Collapse, NoSignal, Repetition, RewardFalls
from ascent.alarms.rules.lengths import Length, Room
from ascent.alarms.rules.rule import Rule
from ascent.alarms.rules.running import Preempted, Unjudged
from ascent.alarms.rules.speed import Slower
from ascent.alarms.rules.truth import HeldOutFalls, HollowPasses, RewardWithoutTruth, Tampering
from ascent.alarms.rules.updates import Drift, FewEffective, Mismatch, NotFinite, Ratio

RULES: tuple[type[Rule], ...] = (
    NotFinite,
    Mismatch,
    FewEffective,
    HollowPasses,
    RewardWithoutTruth,
    HeldOutFalls,
    Tampering,
    NoSignal,
    RewardFalls,
    Collapse,
    Repetition,
    Length,
    Drift,
    Ratio,
    Slower,
    Communication,
    Preempted,
    Unjudged,
    Room,
)
