from __future__ import annotations

import numpy as np
import pytest

from luce.engine.packed_ids import NotPacked, packed_ids


@pytest.mark.parametrize("ids", [(), (0, 5, 151_935), (-(2**31), 2**31 - 1)])
def test_numbers_stay(ids: tuple[int, ...]) -> None:
    found = packed_ids(ids)
    assert found.dtype == np.int32
    assert found.tolist() == list(ids)


@pytest.mark.parametrize("odd", [2**31, -(2**31) - 1, 1.5, "7", None])
def test_what_is_no_such_number_is_told(odd: int) -> None:
    with pytest.raises(NotPacked):
        packed_ids((1, odd))
