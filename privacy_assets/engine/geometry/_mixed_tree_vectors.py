"""Vector arithmetic of the mixed tree, written in LLVM's vectors, as no compiler makes such code of the plain loops.

All children of a node, or all rows of a leaf, are looked at at once, each in a lane of its own, in float32. LLVM turns
the vectors into what the machine has (SSE, AVX2, AVX-512, NEON). Imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

WIDE = 16  # children of a node at most
LEAF = 32  # rows of a leaf at most
_FLOAT, _BYTE, _SHORT, _INT = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32)
_FUSED = ("contract",)  # a product may be added without rounding in between


class _Lanes:
    """Vectors of so many lanes, in the body of an intrinsic."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any, lanes: int) -> None:
        self.builder, self.lanes, self.args = builder, lanes, args
        self._arrays = [
            make_array(kind)(context, builder, value) if isinstance(kind, types.Array) else None
            for kind, value in zip(signature.args, args, strict=True)
        ]

    def length(self, argument: int, axis: int) -> Any:
        return self.builder.extract_value(self._arrays[argument].shape, axis)

    def vector(self, argument: int, index: Any, kind: ir.Type) -> Any:
        """The ``index``-th vector of an array."""
        pointer = self.builder.bitcast(self._arrays[argument].data, ir.VectorType(kind, self.lanes).as_pointer())
        return self.builder.load(self.builder.gep(pointer, [index]), align=1)

    def item(self, argument: int, index: Any) -> Any:
        return self.builder.load(self.builder.gep(self._arrays[argument].data, [index]))

    def everywhere(self, value: Any) -> Any:
        """One value in all lanes."""
        empty = ir.Constant(ir.VectorType(value.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(empty, value, _INT(0))
        return self.builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(_INT, self.lanes), [0] * self.lanes))

    def constant(self, kind: ir.Type, value: float) -> Any:
        return ir.Constant(ir.VectorType(kind, self.lanes), [value] * self.lanes)

    def larger(self, left: Any, right: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", left, right), left, right)

    def count(self, terms: Any, mask: Callable[[Any], Any]) -> Any:
        """In how many of ``terms`` turns the mask is set, as float32; at most 65,535 turns."""
        builder, kept = self.builder, cgutils.alloca_once_value(self.builder, self.constant(_SHORT, 0))
        most = terms.type(2**16 - 1)
        with cgutils.for_range(builder, builder.select(builder.icmp_unsigned("<", terms, most), terms, most)) as loop:
            one = builder.zext(mask(loop.index), ir.VectorType(_SHORT, self.lanes))
            builder.store(builder.add(builder.load(kept), one), kept)
        return builder.uitofp(builder.load(kept), ir.VectorType(_FLOAT, self.lanes))

    def squares(self, start: Any, terms: Any, difference: Callable[[Any], Any]) -> Any:
        """``start`` plus the squares of so many differences."""
        builder, kept = self.builder, cgutils.alloca_once_value(self.builder, start)
        with cgutils.for_range(builder, terms) as loop:
            away = difference(loop.index)
            square = builder.fmul(away, away, flags=_FUSED)
            builder.store(builder.fadd(builder.load(kept), square, flags=_FUSED), kept)
        return builder.load(kept)


@intrinsic  # type: ignore[untyped-decorator]
def rows_within(typing: Any, lanes: Any, slots: Any, leaf: Any, number: Any, slot: Any, limit: Any) -> Any:
    """Uint32 mask of the rows of a leaf whose squared distance, by slots and rounded to float32, is at most ``limit``.

    ``lanes`` float32 (leaves, p, LEAF), ``slots`` uint8 (leaves, q, LEAF); the query's ``number`` (p,), ``slot`` (q,).
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = _Lanes(context, builder, signature, args, LEAF)
        p, q = v.length(3, 0), v.length(4, 0)
        first_number, first_slot = builder.mul(args[2], p), builder.mul(args[2], q)

        def differs(column: Any) -> Any:
            held = v.vector(1, builder.add(first_slot, column), _BYTE)
            return builder.icmp_unsigned("!=", held, v.everywhere(v.item(4, column)))

        def away(column: Any) -> Any:
            held = v.vector(0, builder.add(first_number, column), _FLOAT)
            return builder.fsub(held, v.everywhere(v.item(3, column)))

        total = v.squares(v.count(q, differs), p, away)
        return builder.bitcast(builder.fcmp_ordered("<=", total, v.everywhere(args[5])), ir.IntType(LEAF))

    return types.uint32(lanes, slots, types.intp, number, slot, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def children_within(
    typing: Any, low: Any, high: Any, held: Any, node: Any, number: Any, bit: Any, shrink: Any, limit: Any, out: Any
) -> Any:
    """Uint32 mask of the children of a node whose bound is at most ``limit``, and the bounds into ``out`` (WIDE,).

    A bound: the query's categories that the child lacks, plus its squared distance to the box; if this is not 0, the
    sum is multiplied by ``shrink`` for what float32 rounds off. ``low`` and ``high`` float32 (nodes, p, WIDE),
    ``held`` uint16 (nodes, slots): bit c of a slot says that child c has it; ``bit`` (q,): the slots of the query.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = _Lanes(context, builder, signature, args, WIDE)
        p, q = v.length(4, 0), v.length(5, 0)
        first_number, first_slot = builder.mul(args[3], p), builder.mul(args[3], v.length(2, 1))

        def lacks(column: Any) -> Any:
            place = builder.add(first_slot, builder.zext(v.item(5, column), first_slot.type))
            return builder.bitcast(builder.not_(v.item(2, place)), ir.VectorType(ir.IntType(1), WIDE))

        def away(column: Any) -> Any:
            index, value = builder.add(first_number, column), v.everywhere(v.item(4, column))
            below = builder.fsub(v.vector(0, index, _FLOAT), value)
            beyond = builder.fsub(value, v.vector(1, index, _FLOAT))
            return v.larger(v.larger(below, beyond), v.constant(_FLOAT, 0.0))

        count, squared = v.count(q, lacks), v.squares(v.constant(_FLOAT, 0.0), p, away)
        outside = builder.fcmp_ordered(">", squared, v.constant(_FLOAT, 0.0))
        total = builder.fmul(builder.fadd(count, squared), v.everywhere(args[6]))
        bound = builder.select(outside, total, count)
        target = builder.bitcast(v._arrays[8].data, bound.type.as_pointer())
        builder.store(bound, target, align=4)
        mask = builder.fcmp_ordered("<=", bound, v.everywhere(args[7]))
        return builder.zext(builder.bitcast(mask, ir.IntType(WIDE)), _INT)

    return types.uint32(low, high, held, types.intp, number, bit, types.float32, types.float32, out), generate


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(typing: Any, word: Any) -> Any:
    """Position of the lowest bit set in a uint32 that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.uint32(types.uint32), generate
