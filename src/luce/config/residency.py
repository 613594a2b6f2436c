"""Options of which models are resident, when there are more of them than memory."""

from __future__ import annotations

from dataclasses import dataclass

from luce.config.option import BadValue, option


def split_names(text: str) -> tuple[str, ...]:
    """`A,,B` → A and B.

    Raises:
        BadValue: there is none.
    """
    names = tuple(name for name in text.split(",") if name)
    if not names:
        raise BadValue(f"{text!r} names no model")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyConfig:
    """How requests select models, and which of those are resident at a time."""

    model_routing: str = option(
        "balance",
        "--model-routing",
        choices=("balance", "name"),
        help="What the model a request names means. balance: nothing. name: that model and no "
        "other serves it; every model loads, as with --load-balancing.",
    )
    unknown_model: str = option(
        "reject",
        "--unknown-model",
        choices=("reject", "primary"),
        help="With --model-routing name: who serves a request for a model that is not there. "
        "reject: nobody, it is answered 404.",
    )
    swap_residency: bool = option(
        False,
        "--swap-residency",
        help="With --model-routing name: models that share a device are never resident together. "
        "A request for one that is not resident brings it in, and the others of its device wait "
        "outside.",
    )
    swap_keep_weights: str | None = option(
        None,
        "--swap-keep-weights",
        metavar="A,B",
        check=split_names,
        help="Models that leave their weights on the device when they give way to another on one "
        "device.",
    )
    swap_host_mib: int | None = option(
        None,
        "--swap-host-mib",
        metavar="N",
        unit="MiB",
        minimum=0,
        help="Host memory for the weights of models that are not resident; what does not fit is "
        "read from its files again. 0: none. Default: a quarter of what is free at the start.",
    )
    swap_min_residency_ms: int | None = option(
        None,
        "--swap-min-residency-ms",
        metavar="N",
        unit="milliseconds",
        minimum=0,
        help="A model that came in stays this long, unless nothing runs on it or waits for it. "
        "Default: twice as long as its last swap took, 0.2 to 5 seconds.",
    )
    swap_max_wait_ms: int = option(
        0,
        "--swap-max-wait-ms",
        metavar="N",
        unit="milliseconds",
        minimum=0,
        help="A request that has waited this long need not respect --swap-min-residency-ms. 0: it "
        "always does.",
    )
    swap_drain_timeout_s: int = option(
        0,
        "--swap-drain-timeout-s",
        metavar="N",
        unit="seconds",
        minimum=0,
        help="A swap is given up when the models that must give way still work after this long; "
        "their requests go on. 0: it waits.",
    )
    load_on_demand: bool = option(
        False,
        "--load-on-demand",
        help="With --model-routing name: models load when a request names them. What may be "
        "resident is decided by the bytes each needs on each device; idle ones that were used "
        "longest ago give way.",
    )
    admission_policy: str = option(
        "gate",
        "--admission-policy",
        choices=("gate", "proceed"),
        help="When a model does not fit beside what cannot be moved away. gate: answer 503 and "
        "load nothing. proceed: load it all the same.",
    )
    models_max: int = option(
        0,
        "--models-max",
        metavar="N",
        minimum=0,
        help="Most models resident at a time. 0: as many as fit.",
    )
    idle_unload_s: int = option(
        0,
        "--idle-unload-s",
        metavar="N",
        unit="seconds",
        minimum=0,
        help="A model that has done nothing for this long gives its memory back. 0: it stays.",
    )
    pin: tuple[str, ...] = option(
        (),
        "--pin",
        metavar="NAME",
        help="This model never gives way to another; may be written several times.",
    )
    preload: tuple[str, ...] = option(
        (),
        "--preload",
        metavar="NAME",
        help="Load this model at the start; may be written several times.",
    )

    @property
    def is_by_name(self) -> bool:
        """Whether names select models."""
        return self.model_routing == "name"

    @property
    def kept_weights(self) -> tuple[str, ...]:
        """The models of `--swap-keep-weights`."""
        return split_names(self.swap_keep_weights) if self.swap_keep_weights else ()
