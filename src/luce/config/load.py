"""Puts together what all sources say into one checked `ServerConfig`.

Order of precedence, lowest first: the defaults on the fields, a block's profile, environment
variables, the configuration file, the command line. Values taken from model files or the machine
are not filled in here: they stay None and are resolved by whoever opens the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from luce.config.block import ModelBlock
from luce.config.check import check_blocks, check_gateway, check_listener, check_routing
from luce.config.environment import read_environment
from luce.config.listener import ListenerConfig, ServerConfig
from luce.config.model import ModelConfig
from luce.config.option import Option
from luce.config.priority import in_priority
from luce.config.profile_settings import flags_of_profile, profile_settings
from luce.config.residency_check import check_residency
from luce.config.routing import RoutingConfig
from luce.config.setting import Setting, Settings, defaults_of, values_of
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS, ROUTING_OPTIONS
from luce.config.written import Written, WrittenModel

_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A checked configuration, what its author should be told, and where each value is from.

    Attributes:
        config: what is served; its models are the ones that load.
        notes: sentences about settings without effect; not errors.
        routing: every field of `config.routing` with its source.
        listener: the same for `config.listener`.
        blocks: all model blocks, the unused ones too, in priority order.
    """

    config: ServerConfig
    notes: tuple[str, ...]
    routing: Settings
    listener: Settings
    blocks: tuple[ModelBlock, ...]


def load_config(
    command_line: Written,
    file: Written | None = None,
    environment: Mapping[str, str] = _NO_VARIABLES,
) -> Loaded:
    """Merge, check, and keep what is served.

    Options of the launch and the server are merged one by one. Models are not: if the command
    line names any, they replace all models of the file. Without load balancing only the
    primary is served.

    Raises:
        UsageError: a value or a combination is wrong, in any block, served or not.
    """
    file = file or Written(name="")
    routing = _merged(ROUTING_OPTIONS, file.routing, command_line.routing)
    variables = read_environment(LISTENER_OPTIONS, environment)
    listener = _merged(LISTENER_OPTIONS, variables, file.listener, command_line.listener)
    check_listener(listener)
    check_gateway(routing, listener)
    routing_config = RoutingConfig(**values_of(routing))
    check_routing(routing_config)
    balanced = routing_config.serves_all
    variables = read_environment(_options_with_variables(balanced), environment)
    written = command_line.models or file.models
    blocks = [_block(model, variables) for model in written]
    check_blocks(blocks, balanced, by_name=routing_config.is_by_name)
    check_residency(routing, routing_config, blocks)
    ordered = in_priority(blocks, routing_config)
    config = ServerConfig(
        listener=ListenerConfig(**values_of(listener)),
        models=tuple(block.config for block in (ordered if balanced else ordered[:1])),
        routing=routing_config,
    )
    notes = [
        *_replacement_notes(command_line, file),
        *_model_notes(ordered),
        *(_balanced_notes(environment) if balanced else _unused_notes(ordered)),
    ]
    return Loaded(
        config=config, notes=tuple(notes), routing=routing, listener=listener, blocks=ordered
    )


def _merged(options: Iterable[Option], *sources: Settings) -> dict[str, Setting]:
    """The options' settings; a later source wins over an earlier one."""
    settings = defaults_of(options)
    for source in sources:
        settings.update(source)
    return settings


def _options_with_variables(balanced: bool) -> list[Option]:
    """Model options that may come from the environment: with several models loaded, their
    devices may not, since one variable would put all of them on one device."""
    return [option for option in MODEL_OPTIONS if not (balanced and option is _TARGET_DEVICE)]


(_TARGET_DEVICE,) = (option for option in MODEL_OPTIONS if option.field == "target_device")


def _block(model: WrittenModel, variables: Settings) -> ModelBlock:
    profile = profile_settings(variables, model.settings)
    settings = _merged(MODEL_OPTIONS, profile, variables, model.settings)
    config = ModelConfig(**values_of(settings), flags_of_profile=flags_of_profile(settings))
    return ModelBlock(place=model.place, config=config, settings=settings)


def _model_notes(blocks: Iterable[ModelBlock]) -> Iterable[str]:
    for block in blocks:
        model = block.config
        if model.max_tokens is not None and model.default_max_tokens is not None:
            yield f"{block.label}: --max-tokens has no effect beside --default-max-tokens"


def _unused_notes(ordered: tuple[ModelBlock, ...]) -> Iterable[str]:
    if len(ordered) > 1:
        unused = ", ".join(block.label for block in ordered[1:])
        yield f"only {ordered[0].label} is served; unused without --load-balancing: {unused}"


def _balanced_notes(environment: Mapping[str, str]) -> Iterable[str]:
    if environment.get(_TARGET_DEVICE.variable):
        yield f"{_TARGET_DEVICE.variable} has no effect with --load-balancing"


def _replacement_notes(command_line: Written, file: Written) -> Iterable[str]:
    if command_line.models and file.models:
        yield f"the models of {file.name} are not used: the command line names its own"
