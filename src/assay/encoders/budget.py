"""Encoders are made one size: the width is found at which an encoder has as many parameters as a budget allows.

    fit_width(GRU(), 50_000, length=32, d_in=24, d_code=32)  ->  GRU(width=112), 49,984 parameters

Encoders are compared at one budget, or the larger one wins for its size.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from assay.core.convert import option_types
from assay.core.errors import UserError
from assay.encoders.base import Encoder
from assay.nn.shapes import parameter_count

TOLERANCE = 0.05


def fit_width(encoder: Encoder, budget: int, *, length: int, d_in: int, d_code: int) -> Encoder:
    """Return `encoder` with the width whose parameters are nearest to `budget`; a UserError if that is over 5 % off.

    Width 0, an encoder without its hidden layer, is another structure: it is kept where it meets the budget.
    """
    if option_types(type(encoder)).get("width") is not int:
        raise UserError(
            f"encoder '{encoder.name}' cannot be sized to {budget:,} parameters: it has no option `width: int`. "
            f"Give its class that field, or choose its size by hand and leave the budget out."
        )

    def count(width: int) -> int:
        """Return the parameters at one width. Widths are doubled up to the budget, so none has many more than that."""
        try:
            sized = replace(encoder, width=width)  # type: ignore[call-arg]
            return parameter_count(lambda: sized.build(length, d_in, d_code), expected=budget)
        except (AssertionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"encoder '{encoder.name}' cannot be sized: it does not build at width={width} ({error}). "
                f"Let `build` accept every width of 1 or more."
            ) from error

    def off(width: int) -> int:
        return abs(count(width) - budget)

    own: int = encoder.width  # type: ignore[attr-defined]
    if own == 0 and off(0) <= TOLERANCE * budget:
        return encoder
    above = _first_reaching(count, budget)
    near = [width for width in (above - 1, above) if width >= 1]
    best = min(near, key=off)
    if off(best) > TOLERANCE * budget:
        reached = " and ".join(f"{count(width):,} (width={width})" for width in near)
        raise UserError(
            f"encoder '{encoder.name}' cannot have {budget:,} parameters to within {TOLERANCE:.0%} at length {length}, "
            f"d_in {d_in}, d_code {d_code}: the nearest counts are {reached}. Use one of these as the budget."
        )
    return replace(encoder, width=best)  # type: ignore[call-arg]


def _first_reaching(count: Callable[[int], int], budget: int) -> int:
    """Return the smallest width >= 1 with at least `budget` parameters, by bisection, since counts grow with width."""
    high = 1
    while count(high) < budget:
        if high > budget:  # an encoder with one parameter per unit would reach the budget here
            raise UserError(
                f"no width has {budget:,} parameters: {count(1):,} at width=1, {count(high):,} at width={high}. "
                "The size does not grow with its width: let `build` use it, or leave the budget out."
            )
        high *= 2
    return bisect_left(range(high + 1), budget, lo=1, key=count)
