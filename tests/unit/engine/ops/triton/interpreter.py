"""Triton's interpreter as these tests need it: it accepts today's numpy, is silent and quicker.

What it spends most of its time on is not the kernels' arithmetic: at each call of a device function
it looks through the whole language for what to replace, and for each value it spells its type out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.language import core
from triton.runtime import interpreter


def prepare() -> None:
    """Change the interpreter of this process, once."""
    _read_scalars_of_one_element()
    _compute_without_warnings()
    _replace_the_language_once()
    _spell_types_on_demand()
    interpreter._get_np_dtype = _numpy_type_of(interpreter._get_np_dtype)


def _read_scalars_of_one_element() -> None:
    """Triton 3.6's interpreter makes numbers of arrays of one element, which numpy 2.4 refuses."""
    original = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: interpreter._LangPatchScope) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched


def _compute_without_warnings() -> None:
    """A GPU raises nothing in a lane whose result is dropped, so its stand-in may not either."""
    original = interpreter.GridExecutor.__call__

    def quiet(self: interpreter.GridExecutor, *args: object, **options: object) -> None:
        with np.errstate(all="ignore"):
            original(self, *args, **options)

    interpreter.GridExecutor.__call__ = quiet


def _replace_the_language_once() -> None:
    """Device functions find what the kernel that calls them has replaced already."""
    original = interpreter._patch_lang
    replaced: set[int] = set()

    def patched(function: Any) -> interpreter._LangPatchScope:
        modules = (core, interpreter.tl)
        values = function.__globals__.values()
        wanted = {id(module) for module in modules if any(value is module for value in values)}
        if wanted and wanted <= replaced:
            return interpreter._LangPatchScope()
        scope = original(function)
        replaced.update(wanted)
        restore = scope.restore

        def restored() -> None:
            replaced.clear()
            restore()

        scope.restore = restored
        return scope

    interpreter._patch_lang = patched


def _spell_types_on_demand() -> None:
    """Neither a tuple's type nor the name of a type is asked for where kernels are interpreted."""

    def new_type(self: Any, types: list[Any], fields: list[str] | None = None) -> None:
        self.types = types
        self.fields = fields or [""] * len(types)

    def name_of(self: Any) -> str:
        pairs = zip(self.fields, self.types, strict=True)
        return "[" + ",".join(f"{field}:{kind}" for field, kind in pairs) + "]"

    core.tuple_type.__init__ = new_type
    core.tuple_type.name = property(name_of)

    def new_block(self: Any, element_ty: Any, shape: Any) -> None:
        self.element_ty = element_ty
        self.shape = core.tuple(core._unwrap_shape(shape))
        if not self.shape:
            raise TypeError("a block has a dimension")
        self.numel = core.validate_block_shape(self.shape)

    core.block_type.__init__ = new_block
    core.block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")

    def new_tuple(self: Any, args: Any, type: Any = None) -> None:  # noqa: A002
        self.values = list(args)
        is_type = type is None or isinstance(type, core.tuple_type)
        self.known_type = type if is_type else core.tuple_type(type)

    def type_of(self: Any) -> Any:
        if self.known_type is None:
            self.known_type = core._type_for_tuple_values(self.values)
        return self.known_type

    def set_type(self: Any, kind: Any) -> None:
        self.known_type = kind

    core.tuple.__init__ = new_tuple
    core.tuple.type = property(type_of, set_type)


def _numpy_type_of(original: Any) -> Any:
    """The same, which does not make its table anew at each call."""
    known: dict[str, np.dtype[Any]] = {}

    def numpy_type(kind: Any) -> np.dtype[Any]:
        scalar = kind.scalar
        found = known.get(scalar.name)
        if found is None:
            found = known[scalar.name] = original(scalar)
        return found

    return numpy_type
