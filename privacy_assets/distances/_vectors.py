"""Vector arithmetic of the searches as LLVM vectors, which numba does not generate from plain
loops.

All children of a node, or all rows of a leaf, are compared in one pass, one per lane. LLVM compiles
the vectors for the machine (SSE, AVX2, AVX-512, NEON). Imports numba. Numba renews a cached
function only if its own file changes, so after changing this file, change the files that import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

WIDE = 16  # maximum number of children of a node
LEAF = 32  # maximum number of rows of a leaf
_FLOAT = ir.FloatType()
_BYTE = ir.IntType(8)
_INT = ir.IntType(32)
_FUSED = ("contract",)  # fused multiply-add is allowed


def vectorised(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap numba's ``intrinsic``; the decorated functions are called without the first argument."""
    return intrinsic(function)


class _Lanes:
    """Emitter of LLVM IR for vectors of ``lanes`` elements in a numba intrinsic.

    Methods take arrays by their argument position.
    """

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any, lanes: int) -> None:
        self.builder = builder
        self.lanes = lanes
        self._arrays = {}
        for position, (kind, value) in enumerate(zip(signature.args, args, strict=True)):
            if isinstance(kind, types.Array):
                self._arrays[position] = make_array(kind)(context, builder, value)

    def length(self, array: int, axis: int) -> Any:
        return self.builder.extract_value(self._arrays[array].shape, axis)

    def item(self, array: int, index: Any) -> Any:
        """Load the cell at ``index`` of the array's contiguous memory."""
        pointer = self.builder.gep(self._arrays[array].data, [index])
        return self.builder.load(pointer)

    def vector(self, array: int, index: Any) -> Any:
        """Load one cell per lane, starting at ``index`` of the array's memory."""
        first = self.builder.gep(self._arrays[array].data, [index])
        kind = ir.VectorType(first.type.pointee, self.lanes)
        pointer = self.builder.bitcast(first, kind.as_pointer())
        return self.builder.load(pointer, align=1)

    def store(self, vector: Any, array: int) -> None:
        kind = vector.type.as_pointer()
        target = self.builder.bitcast(self._arrays[array].data, kind)
        self.builder.store(vector, target, align=1)

    def everywhere(self, value: Any) -> Any:
        """Broadcast a value to all lanes."""
        empty = ir.Constant(ir.VectorType(value.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(empty, value, _INT(0))
        first_lane = self.zero(_INT)
        return self.builder.shuffle_vector(first, empty, first_lane)

    def zero(self, kind: ir.Type) -> Any:
        return ir.Constant(ir.VectorType(kind, self.lanes), [0] * self.lanes)

    def larger(self, left: Any, right: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", left, right), left, right)

    def count(self, terms: Any, mask: Callable[[Any], Any]) -> Any:
        """Count the terms whose mask has a set bit, in each lane.

        Counts are stored in bytes that are emptied after 255 terms.

        Args:
            terms: Number of terms, an integer of the IR.
            mask: Maps the index of a term to its mask, a vector of one bit per lane.

        Returns:
            The counts, a float32 vector.
        """
        builder = self.builder
        most = terms.type(255)
        bytes_type = ir.VectorType(_BYTE, self.lanes)
        floats_type = ir.VectorType(_FLOAT, self.lanes)
        total = cgutils.alloca_once_value(builder, self.zero(_FLOAT))
        byte_count = cgutils.alloca_once(builder, bytes_type)
        n_blocks = builder.udiv(builder.add(terms, terms.type(254)), most)
        with cgutils.for_range(builder, n_blocks) as block:
            first = builder.mul(block.index, most)
            remaining = builder.sub(terms, first)
            builder.store(self.zero(_BYTE), byte_count)
            is_last = builder.icmp_unsigned("<", remaining, most)
            n_terms = builder.select(is_last, remaining, most)
            with cgutils.for_range(builder, n_terms) as loop:
                bits = mask(builder.add(first, loop.index))
                bit = builder.zext(bits, bytes_type)
                builder.store(builder.add(builder.load(byte_count), bit), byte_count)
            counted = builder.uitofp(builder.load(byte_count), floats_type)
            builder.store(builder.fadd(builder.load(total), counted), total)
        return builder.load(total)

    def squares(self, start: Any, terms: Any, difference: Callable[[Any], Any]) -> Any:
        """Add the squares of differences to a vector.

        Args:
            start: Vector to add to, float32.
            terms: Number of differences, an integer of the IR.
            difference: Maps the index of a term to the differences, a float32 vector.

        Returns:
            The sums, a float32 vector.
        """
        builder = self.builder
        total = cgutils.alloca_once_value(builder, start)
        with cgutils.for_range(builder, terms) as loop:
            away = difference(loop.index)
            square = builder.fmul(away, away, flags=_FUSED)
            increased = builder.fadd(builder.load(total), square, flags=_FUSED)
            builder.store(increased, total)
        return builder.load(total)

    def mask(self, comparison: str, vector: Any, limit: Any) -> Any:
        """Compare each lane with a number.

        Args:
            comparison: Operator with the lane on the left, such as "<=".
            vector: One number per lane, float32.
            limit: Number on the right of the operator, float32.

        Returns:
            An unsigned integer with one bit per lane, the lowest for the first lane. A comparison
            with NaN is False.
        """
        lanes = self.builder.fcmp_ordered(comparison, vector, self.everywhere(limit))
        return self.builder.bitcast(lanes, ir.IntType(self.lanes))


@vectorised
def rows_within(
    typing: Any, lanes: Any, slots: Any, leaf: Any, number: Any, slot: Any, limit: Any
) -> Any:
    """Return the rows of a leaf whose squared distance, computed in float32, is at most ``limit``.

    Args:
        typing: Typing context. Numba passes it; callers omit it.
        lanes: Numbers of each leaf, float32 (leaves, p, LEAF).
        slots: Slots of each leaf, uint8 (leaves, q, LEAF).
        leaf: Position of the leaf.
        number: Numbers of the query, float32 (p,).
        slot: Slots of the query, uint8 (q,).
        limit: Maximum squared distance, float32.

    Returns:
        Mask uint32, bit i for row i of the leaf. Bits beyond the rows of the leaf may be set.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = _Lanes(context, builder, signature, args, LEAF)
        p = v.length(3, 0)
        q = v.length(4, 0)
        lanes = args[2].type(LEAF)
        first_number = builder.mul(args[2], p)
        first_slot = builder.mul(args[2], q)

        def differs(column: Any) -> Any:
            cells = v.vector(1, builder.mul(builder.add(first_slot, column), lanes))
            return builder.icmp_unsigned("!=", cells, v.everywhere(v.item(4, column)))

        def away(column: Any) -> Any:
            cells = v.vector(0, builder.mul(builder.add(first_number, column), lanes))
            return builder.fsub(cells, v.everywhere(v.item(3, column)))

        count = v.count(q, differs)
        return v.mask("<=", v.squares(count, p, away), args[5])

    return types.uint32(lanes, slots, types.intp, number, slot, types.float32), generate


@vectorised
def children_within(
    typing: Any,
    low: Any,
    high: Any,
    categories: Any,
    node: Any,
    number: Any,
    bit: Any,
    shrink: Any,
    tiny: Any,
    limit: Any,
    out: Any,
) -> Any:
    """Return the children of a node whose bound is at most ``limit``.

    The bound is the number of the query's categories that the child lacks plus the squared distance
    to its box. If this distance is not 0, the sum is multiplied by ``shrink`` and reduced by
    ``tiny`` to allow for float32 rounding.

    Args:
        typing: Typing context. Numba passes it; callers omit it.
        low: Lower bounds of the boxes, float32 (nodes, p, WIDE).
        high: Upper bounds of the boxes, float32 (nodes, p, WIDE).
        categories: Categories of the children, uint16 (nodes, slots): bit c of a slot is set if
            child c has the category.
        node: Position of the node.
        number: Numbers of the query, float32 (p,).
        bit: Positions of the query's categories among the slots, uint32 (q,).
        shrink: Factor below 1, float32.
        tiny: Number subtracted from the bound, float32.
        limit: Maximum bound, float32.
        out: Receives the bound of each child, float32 (WIDE,).

    Returns:
        Mask uint16, bit c for child c. Bits of absent children may be set.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = _Lanes(context, builder, signature, args, WIDE)
        lanes = args[3].type(WIDE)
        first_number = builder.mul(args[3], v.length(4, 0))
        first_slot = builder.mul(args[3], v.length(2, 1))

        def lacks(column: Any) -> Any:
            slot = builder.zext(v.item(5, column), first_slot.type)
            index = builder.add(first_slot, slot)
            lacking = builder.not_(v.item(2, index))
            return builder.bitcast(lacking, ir.VectorType(ir.IntType(1), WIDE))

        def away(column: Any) -> Any:
            index = builder.mul(builder.add(first_number, column), lanes)
            value = v.item(4, column)
            below = builder.fsub(v.vector(0, index), v.everywhere(value))
            beyond = builder.fsub(v.everywhere(value), v.vector(1, index))
            return v.larger(v.larger(below, beyond), v.zero(_FLOAT))

        count = v.count(v.length(5, 0), lacks)
        squared = v.squares(v.zero(_FLOAT), v.length(4, 0), away)
        total = builder.fadd(count, squared)
        total = builder.fmul(total, v.everywhere(args[6]))
        total = builder.fsub(total, v.everywhere(args[7]))
        is_outside = builder.fcmp_ordered(">", squared, v.zero(_FLOAT))
        bound = builder.select(is_outside, total, count)
        v.store(bound, 9)
        return v.mask("<=", bound, args[8])

    single = types.float32
    return types.uint16(
        low, high, categories, types.intp, number, bit, single, single, single, out
    ), generate


@vectorised
def children_inside(
    typing: Any,
    low: Any,
    high: Any,
    categories: Any,
    mixed: Any,
    node: Any,
    number: Any,
    bit: Any,
    grow: Any,
    limit: Any,
) -> Any:
    """Return the children of a node whose rows are all within ``limit``, allowing for rounding.

    The bound is the number of columns in which the child lacks the query's category or is
    ``mixed``, plus the squared distance to the farthest corner of the box, multiplied by ``grow``.

    Args:
        typing: Typing context. Numba passes it; callers omit it.
        low: Lower bounds of the boxes, as in :func:`children_within`.
        high: Upper bounds of the boxes.
        categories: Categories of the children, as in :func:`children_within`.
        mixed: Children with several categories, uint16 (nodes, q): bit c is set if child c may have
            several categories in the column.
        node: Position of the node.
        number: Numbers of the query, float32 (p,).
        bit: Positions of the query's categories among the slots, uint32 (q,).
        grow: Factor above 1, float32.
        limit: Maximum bound, float32.

    Returns:
        Mask uint16, bit c for child c.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = _Lanes(context, builder, signature, args, WIDE)
        lanes = args[4].type(WIDE)
        first_number = builder.mul(args[4], v.length(5, 0))
        first_slot = builder.mul(args[4], v.length(2, 1))
        first_column = builder.mul(args[4], v.length(6, 0))

        def differs(column: Any) -> Any:
            slot = builder.zext(v.item(6, column), first_slot.type)
            index = builder.add(first_slot, slot)
            several = v.item(3, builder.add(first_column, column))
            away = builder.or_(builder.not_(v.item(2, index)), several)
            return builder.bitcast(away, ir.VectorType(ir.IntType(1), WIDE))

        def away(column: Any) -> Any:
            index = builder.mul(builder.add(first_number, column), lanes)
            value = v.item(5, column)
            above = builder.fsub(v.vector(1, index), v.everywhere(value))
            below = builder.fsub(v.everywhere(value), v.vector(0, index))
            return v.larger(above, below)

        count = v.count(v.length(6, 0), differs)
        total = builder.fmul(v.squares(count, v.length(5, 0), away), v.everywhere(args[7]))
        return v.mask("<=", total, args[8])

    single = types.float32
    return types.uint16(
        low, high, categories, mixed, types.intp, number, bit, single, single
    ), generate


@vectorised
def lowest_bit(typing: Any, word: Any) -> Any:
    """Return the position of the lowest set bit.

    Args:
        typing: Typing context. Numba passes it; callers omit it.
        word: Unsigned integer, not 0.

    Returns:
        Position int64, 0 for the lowest bit.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = builder.zext(args[0], ir.IntType(64))
        position = builder.cttz(wide, ir.IntType(1)(1))
        return builder.zext(position, ir.IntType(64))

    return types.int64(word), generate
