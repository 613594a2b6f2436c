"""The model a request means when no other may answer in its place."""

from __future__ import annotations

from luce.errors import InvalidRequest, ModelNotFound
from luce.listener.served import ServedModel, ServedModels
from luce.units import quoted

_NO_NAME = (None, "", "auto")


def named_model(models: ServedModels, name: str | None, *, is_strict: bool = False) -> ServedModel:
    """The model of this name; the only one there is answers to any name.

    Args:
        models: what is served.
        name: as the request has it.
        is_strict: no model stands in for a name that is none of theirs.

    Raises:
        InvalidRequest: there are several and the request names none.
        ModelNotFound: there are several and none has this name.
    """
    served = list(models)
    if len(served) == 1:
        return served[0]
    if name is None or name in _NO_NAME:
        raise InvalidRequest(
            "Several models are loaded and their answers differ; set model to one of: "
            f"{_names(models)}.",
            param="model",
        )
    model = models.get(name)
    if model is None and models.unknown_model is not None and not is_strict:
        return models[models.unknown_model]
    if model is None:
        raise no_such_model(models, name)
    return model


def no_such_model(models: ServedModels, name: str) -> ModelNotFound:
    """The error about a name that is none of theirs."""
    return ModelNotFound(
        f"There is no model {quoted(name, 128)}; available models: {_names(models)}.", param="model"
    )


def _names(models: ServedModels) -> str:
    return ", ".join(model.name for model in models)
