"""The engine: token ids in, token ids out. Knows no text, no HTTP, no scheduling policy.

All methods belong to one thread. A step is planned elsewhere (`scheduler.plan`); the engine
checks it, runs it and hands back what was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from luce.engine.assembly import (
    Blueprint,
    build_model,
    check_dtype,
    engine_info,
    fitted,
    kv_spec,
    make_executor,
    make_rows,
    make_runner,
    room_for,
)
from luce.engine.device import (
    free_bytes,
    is_out_of_memory,
    open_device,
    release_all,
    release_cached,
    resolve_dtype,
    taken_peak_bytes,
    use_threads,
)
from luce.engine.driver_trial import open_driver
from luce.engine.eviction import EvictionLevel, HeldWeights, Kept
from luce.engine.expert_loads import ExpertLoads
from luce.engine.extras import RowExtras, SampledTokens, StepExtras
from luce.engine.host_blocks import HostBlocks, HostRoom
from luce.engine.inputs import build_inputs
from luce.engine.kv_tensors import KVTensors
from luce.engine.models.base import Parameters
from luce.engine.options import EngineOptions
from luce.engine.plan_check import PlanCheck
from luce.engine.sizing import size_engine
from luce.engine.state_tensors import StateTensors
from luce.engine.warm_up import one_token_batch, one_token_plan, warm_up_batches
from luce.engine.weights import Progress, WeightReader
from luce.errors import (
    DeviceOutOfMemory,
    InternalError,
    ModelFileError,
    PlacementError,
)
from luce.loaders.file_identity import FileIdentity
from luce.loaders.opening import open_checkpoint
from luce.protocol.sampling import GrammarSpec, HiddenStates
from luce.scheduler.plan import FAILED_TOKEN, StepPlan, StepResult
from luce.units import format_bytes

if TYPE_CHECKING:
    from luce.engine.device_executor import DeviceExecutor

__all__ = ["Blueprint", "Engine", "PendingStep"]


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step that was launched; its tokens may still be on their way."""

    step: int
    _read: Callable[[], SampledTokens]
    _read_hidden: Callable[[], tuple[tuple[int, HiddenStates | None], ...]]

    def result(self) -> StepResult:
        """Wait for the sampled tokens.

        Raises:
            InternalError: the device failed.
        """
        try:
            sampled = self._read()
            hidden = self._read_hidden()
            return StepResult(self.step, sampled.token_ids, sampled.logprobs, hidden)
        except RuntimeError as error:
            raise InternalError(f"step {self.step} failed on the device: {error}") from error


class Engine:
    """A loaded model with its KV cache and rows.

    Attributes:
        resolved: the geometry it came out with.
    """

    def __init__(self, blueprint: Blueprint, parameters: Parameters, progress: Progress) -> None:
        built, device = build_model(blueprint, parameters), blueprint.device
        wants_places = blueprint.options.takes_turns and built.ops.is_on_device
        driver = open_driver(device) if wants_places else None
        self._weights = HeldWeights(built, device, driver)
        # From here on the layout is as it is, whatever memory there will be.
        self._blueprint = fitted(blueprint, self._weights.built)
        self._device = blueprint.device
        self._progress = progress
        self.resolved = engine_info(self._blueprint, self._weights.built)
        self._extras = RowExtras(self.resolved.max_rows, self.resolved.vocab_size)
        self._loads = ExpertLoads()
        self._is_serving = self._is_paused = False
        self._begin_serving()

    @classmethod
    def load(cls, options: EngineOptions, progress: Progress) -> Engine:
        """Open a model file or folder and load it.

        Args:
            options: what and how large.
            progress: called with stage, bytes done and bytes in all.

        Raises:
            ModelFileError: the file is missing, damaged or not understood.
            UsageError: an option does not fit the model.
            PlacementError: there is no such device or it has too little memory.
        """
        device = open_device(options.device)
        use_threads(options.threads)
        checkpoint = open_checkpoint(options.path)
        dtype = resolve_dtype(options.dtype, device)
        check_dtype(checkpoint.hparams, dtype, device)
        spec = kv_spec(checkpoint.architecture, checkpoint.hparams, options, dtype)
        sizing = size_engine(options, checkpoint, spec, dtype, device, free_bytes(device))
        blueprint = Blueprint(
            checkpoint.architecture,
            checkpoint.hparams,
            options,
            device,
            dtype,
            sizing,
            FileIdentity.of(options.path),
        )
        reader = WeightReader(checkpoint, dtype, device.torch, progress)
        try:
            return cls(blueprint, reader, progress)
        finally:
            reader.close()

    def warm_up(self) -> None:
        """Run the shapes to come once, into the null block, so that no request pays for it.

        On a GPU also captures the decode steps.

        Raises:
            ModelFileError: the model computes no numbers.
            PlacementError: the device's memory does not hold them.
        """
        with torch.inference_mode():
            if self._executor is not None:
                self._warm_up_device(self._executor, is_first=True)
                self._loads.restart(self._weights.built.model)
                return
            chunk = self._blueprint.options.chunk
            for batch in warm_up_batches(self.resolved, chunk, self._device.torch):
                self._check_numbers(self._runner.logits(batch))
            self._loads.restart(self._weights.built.model)
        # Loading and warming up leave some 20 MB in the heap that no step needs.
        release_all(self._device)

    def _warm_up_device(self, executor: DeviceExecutor, *, is_first: bool) -> None:
        try:
            if is_first:
                executor.warm_up(self._blueprint.options.chunk)
            plan = one_token_plan()
            if FAILED_TOKEN in executor.launch(plan, self._extras.begin(plan.items))().token_ids:
                raise self._no_numbers()
            executor.capture_all(self._progress)
            executor.capture_mixed(self._blueprint.options.captured_chunk)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise PlacementError(
                f"{self._device.name} ran out of memory while capturing decode steps; "
                f"{format_bytes(free_bytes(self._device))} free now; lower --max-concurrency, "
                "--chunk or --kv-pool-tokens"
            ) from error

    def _check_numbers(self, logits: torch.Tensor | None) -> None:
        if logits is not None and not bool(logits.isfinite().all()):
            raise self._no_numbers()

    def _no_numbers(self) -> ModelFileError:
        return ModelFileError(
            f"{self._blueprint.options.path}: the logits computed from its weights are not finite "
            "numbers; the weights are damaged, or too large for dtype "
            f"{self.resolved.dtype}"
        )

    def step(self, plan: StepPlan) -> PendingStep:
        """Run a plan.

        Raises:
            InternalError: the plan makes no sense; nothing was changed.
            InvalidRequest: a new row's sampling parameters do not fit the model; as above.
            DeviceOutOfMemory: the step needs more memory than there is.
        """
        self._check.check(plan)
        try:
            with torch.inference_mode():
                self._extras.start(plan.starts)
                extras = self._extras.begin(plan.items)
                if self._executor is not None:
                    return _pending(plan, self._executor.launch(plan, extras), extras)
                self._rows.start(plan.starts)
                self._runner.start_states(plan.starts)
                batch = build_inputs(
                    plan.items, self._rows, self.resolved.block_tokens, self._device.torch
                )
                read = self._runner.sample(batch, self._rows, extras)
                self._runner.save_states(plan.items)
                return _pending(plan, read, extras)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise DeviceOutOfMemory(
                    "The model's device ran out of memory; try again, with fewer or shorter "
                    "requests at a time."
                ) from error
            raise InternalError(f"step {plan.step} failed: {error}") from error

    def use_vocabulary(
        self, tokens: Sequence[bytes], control_ids: Sequence[int], end_ids: Sequence[int]
    ) -> None:
        """Learn the tokens' bytes; see `RowConstraints.use_vocabulary`."""
        self._extras.constraints.use_vocabulary(tokens, control_ids, end_ids)

    def check_grammar(self, grammar: GrammarSpec) -> GrammarSpec:
        """Compile a grammar before a row comes with it; see `RowConstraints.check`.

        Raises:
            InvalidGrammar: it cannot be followed.
            InternalError: no vocabulary has come.
        """
        return self._extras.constraints.check(grammar)

    def host_blocks(self, nbytes: int) -> HostBlocks:
        """Room for copies of cached blocks and states in so much host memory."""
        spec, state = self._blueprint.kv_spec, self.resolved.state
        if not self.resolved.num_checkpoints:
            state = None
        room = HostRoom.within(nbytes, spec, state)
        return HostBlocks(room, self._cache_tensors, spec, state, self._device)

    def _cache_tensors(self) -> tuple[KVTensors, StateTensors | None]:
        return self._runner.kv, self._runner.states

    def evict(self, level: EvictionLevel, save: Callable[[], None]) -> Kept:
        """Give memory back; no step may be under way, and none may come until `reinstate`.

        Args:
            level: what is kept; of an evicted model less can be kept than before, never more, and
                no captured steps.
            save: called when nothing can fail any more, while blocks still hold what they held.

        Raises:
            PlacementError: there is no host memory for the weights; nothing was changed.
        """
        self._weights.prepare(level)
        save()
        if self._is_serving:
            self._loads.leave(self._weights.built.model)
        self._end_serving(keeps_steps=self._is_serving and level != "cold")
        self._weights.leave(level)
        self._give_back()
        kept, executor = self._weights.kept, self._executor if self._is_paused else None
        steps_bytes = 0 if executor is None else executor.graph_bytes
        return replace(kept, device_bytes=kept.device_bytes + steps_bytes)

    def reinstate(self) -> int:
        """Serve again, in the layout of the first load; nothing is known of any row.

        Returns:
            Host memory in which a copy of the weights stays for the next time, in bytes.

        Raises:
            ModelFileError: the file is not what it was.
            PlacementError: the device's memory does not hold it. In both cases, and in any other,
                the model is as evicted as it was.
        """
        level, has_steps = self._weights.level, self._is_paused
        if level is None:
            return self._weights.parked_bytes
        try:
            with self._weights.coming_back(self._blueprint):
                if self._is_paused:
                    self._resume()
            if not self._is_serving:
                self._begin_serving()
                self._make_ready(was_read=level == "cold")
            with torch.inference_mode():
                self._loads.restart(self._weights.built.model)
        except BaseException:
            self._end_serving(keeps_steps=has_steps)
            self._weights.leave(level)
            release_all(self._device)
            raise
        self._weights.level = None
        return self._weights.parked_bytes

    def _give_back(self) -> None:
        # Cache and captures are in no cycle; a model may be.
        if self._weights.level == "cold":
            release_all(self._device)
        else:
            release_cached(self._device)

    def _make_ready(self, *, was_read: bool) -> None:
        """Capture or record steps anew; see whether weights that were read again make numbers."""
        with torch.inference_mode():
            if self._executor is not None:
                # Later captures are not what anybody waits to hear of.
                self._progress = _silent
                self._warm_up_device(self._executor, is_first=False)
                return
            batch = one_token_batch(self.resolved, self._device.torch)
            if was_read:
                self._check_numbers(self._runner.logits(batch))
            else:
                self._runner.prepare(batch)

    def _begin_serving(self) -> None:
        resolved, device, built = self.resolved, self._device, self._weights.built
        with room_for(self._blueprint):
            runner = make_runner(self._blueprint, built, self._weights.placing_driver)
            rows = make_rows(built, resolved, device)
            executor = make_executor(runner, resolved, device) if built.ops.is_on_device else None
        self._check = PlanCheck(resolved)
        self._runner, self._rows, self._executor = runner, rows, executor
        self._is_serving = True

    def _end_serving(self, *, keeps_steps: bool) -> None:
        """Give up the cache, and captured steps too if they are not to be kept, or cannot be
        because what they know addresses of comes back to others.
        """
        if not self._is_serving and not self._is_paused:
            return
        memory, executor = self._runner.memory, self._executor
        will_pause = keeps_steps and executor is not None and memory is not None
        if executor is not None and will_pause:
            executor.forget_rows()
        else:
            # Captured steps first: they keep what they read.
            del executor, self._executor, self._rows, self._runner
        self._is_serving, self._is_paused = False, will_pause
        if memory is not None:
            memory.leave()

    def _resume(self) -> None:
        memory = self._runner.memory
        assert memory is not None, "nothing is kept without"
        with room_for(self._blueprint):
            memory.return_()
        self._check = PlanCheck(self.resolved)
        self._is_serving, self._is_paused = True, False

    def expert_loads(self) -> npt.NDArray[np.int64] | None:
        """Tokens each expert of each mixture has had while it served, [mixtures, experts].

        Waits for the steps under way. None: the model has no mixtures.

        Raises:
            InternalError: the device failed.
        """
        try:
            loads = self._loads.read(self._weights.built.model if self._is_serving else None)
        except RuntimeError as error:
            raise InternalError(f"the experts' counters cannot be read: {error}") from error
        return None if loads is None else loads.numpy()

    @property
    def peak_bytes(self) -> int:
        """Most memory taken so far; see `taken_peak_bytes`."""
        memory = self._runner.memory if self._is_serving else None
        placed_bytes = self._weights.placed_bytes + (0 if memory is None else memory.nbytes)
        return taken_peak_bytes(self._device) + placed_bytes

    def close(self) -> None:
        """Give the memory back; the engine cannot be used any more."""
        self._extras.constraints.close()
        self._end_serving(keeps_steps=False)
        self._weights.drop()
        release_cached(self._device)


def _pending(plan: StepPlan, read: Callable[[], SampledTokens], extras: StepExtras) -> PendingStep:
    return PendingStep(plan.step, read, tuple if extras.tap is None else extras.tap.finish())


def _silent(stage: str, done: int, total: int) -> None:
    del stage, done, total
