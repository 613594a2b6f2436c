"""Stepper: drives a scheduler and a PlanEngine as the worker's loop does, and keeps the score."""

from __future__ import annotations

from collections import Counter, deque

from luce.protocol.sampling import HiddenStates, SamplingParams
from luce.scheduler.outcome import AdmitResult, Admitted, RetiredSequence, SequenceDelta
from luce.scheduler.plan import StepPlan, StepResult
from luce.scheduler.scheduler import Scheduler
from luce.testing.plan_engine import PlanEngine


class Stepper:
    """One scheduler on one double of an engine.

    Args:
        scheduler: fresh.
        engine: fresh, of the same block size.
        depth: 1 plans a step ahead of the one whose result is applied, 0 does not.

    Attributes:
        plans: every plan made.
        outputs: ids by request.
        endings: `finish` of each request's last delta.
        hidden: what was read, by request.
        retired: by request.
        num_retired: how often each request was retired.
    """

    def __init__(self, scheduler: Scheduler, engine: PlanEngine, depth: int = 0) -> None:
        self.scheduler = scheduler
        self.engine = engine
        self.depth = depth
        self.plans: list[StepPlan] = []
        self.outputs: dict[str, list[int]] = {}
        self.endings: dict[str, str] = {}
        self.hidden: dict[str, HiddenStates] = {}
        self.retired: dict[str, RetiredSequence] = {}
        self.num_retired: Counter[str] = Counter()
        self._under_way: deque[tuple[StepPlan, StepResult]] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether a sequence lives or a result waits."""
        return self.scheduler.has_work or bool(self._under_way)

    def submit(
        self, request_id: str, prompt: tuple[int, ...], sampling: SamplingParams
    ) -> AdmitResult:
        """Submit and, if admitted, keep the score of this request."""
        answer = self.scheduler.submit(request_id, prompt, sampling)
        if isinstance(answer, Admitted):
            self.outputs[request_id] = []
        return answer

    def step(self, *, has_memory: bool = True) -> StepPlan | None:
        """Plan one step, apply what is due, check the scheduler's books.

        Args:
            has_memory: False: the engine finds none for the step, if it is one with prompts.
        """
        plan = self.scheduler.plan()
        if plan is not None:
            self.plans.append(plan)
            self._under_way.append((plan, self.engine.run(plan)))
            if not has_memory and self.scheduler.fail_largest(plan, "DeviceOutOfMemory", ""):
                self.forget_results()
        if self._under_way and (plan is None or len(self._under_way) > self.depth):
            self.settle_one()
        self._retire(self.scheduler.take_retired())
        self.scheduler.check_integrity()
        return plan

    def settle_one(self) -> None:
        """Apply the oldest result that waits."""
        outcome = self.scheduler.apply(*self._under_way.popleft())
        for delta in outcome.deltas:
            self._gain(delta)
        self._retire(outcome.retired)

    def run(self, max_steps: int = 10_000) -> int:
        """Step until nothing is left; how many steps that took.

        Raises:
            AssertionError: it took more than `max_steps`.
        """
        steps = 0
        while self.is_busy:
            self.step()
            steps += 1
            if steps > max_steps:
                raise AssertionError(f"not done after {max_steps} steps")
        self._retire(self.scheduler.take_retired())
        return steps

    def forget_results(self) -> None:
        """Drop results that wait, as a worker does after an engine fault."""
        self._under_way.clear()

    def _gain(self, delta: SequenceDelta) -> None:
        if delta.request_id in self.endings:
            raise AssertionError(f"{delta.request_id} goes on after its end")
        self.outputs[delta.request_id].extend(delta.token_ids)
        if delta.hidden is not None:
            self.hidden[delta.request_id] = delta.hidden
        if delta.finish is not None:
            self.endings[delta.request_id] = delta.finish

    def _retire(self, retired: tuple[RetiredSequence, ...]) -> None:
        for gone in retired:
            self.retired[gone.request_id] = gone
            self.num_retired[gone.request_id] += 1
