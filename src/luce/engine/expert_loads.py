"""How many tokens each expert of a mixture has had, for people and for whoever places experts."""

from __future__ import annotations

import torch

from luce.engine.models.base import Model


class ExpertLoads:
    """Counts that outlive a model's counters.

    Steps that try a model out count too, and weights that come back bring old counters with them:
    so counters are set to zero before a model serves, and read before it leaves. Lanes and prompt
    tokens that pad captured steps are routed, and counted, as well: so loads of a GPU are exact
    only as far as steps are full.
    """

    def __init__(self) -> None:
        self._before: torch.Tensor | None = None

    def restart(self, model: Model) -> None:
        """The model serves from now on."""
        for counter in model.expert_loads:
            counter.zero_()

    def leave(self, model: Model) -> None:
        """The model goes, with its counters."""
        self._before = self.read(model)

    def read(self, model: Model | None) -> torch.Tensor | None:
        """All tokens so far; waits for the steps under way.

        Args:
            model: that serves; None: none does.

        Returns:
            i64 [mixtures, experts] on the host; None for a model without mixtures.
        """
        if model is None or not model.expert_loads:
            return self._before
        now = torch.stack(list(model.expert_loads)).cpu()
        return now if self._before is None else now + self._before
