"""The kernels that launched.py launches. A program goes through blocks of the elements of one set.

Points lie as HEADS times OF_HEAD rows, both powers of 2, of which `heads` times `of_head` are there. Numbers of steps
are those of gather.py and spread.py. Sums of a program have the precision of the points; its caller adds them up wider.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rows(heads, of_head, HEADS: tl.constexpr, OF_HEAD: tl.constexpr):  # noqa: N803
    """Where each point is in memory, and whether it is there."""
    r = tl.arange(0, HEADS * OF_HEAD)
    head, point = r // OF_HEAD, r % OF_HEAD
    return head * of_head + point, (head < heads) & (point < of_head)


@triton.jit
def _matrix(v, number, points, row, here, dim, DIM: tl.constexpr):  # noqa: N803
    """The rows of set `number` of v (sets, points, dim), 0 elsewhere."""
    d = tl.arange(0, DIM)
    at = number * points * dim + row[:, None] * dim + d[None, :]
    return tl.load(v + at, mask=here[:, None] & (d < dim)[None, :], other=0.0)


@triton.jit
def _put(v, number, points, row, here, dim, value, DIM: tl.constexpr):  # noqa: N803
    d = tl.arange(0, DIM)
    at = number * points * dim + row[:, None] * dim + d[None, :]
    tl.store(v + at, value, mask=here[:, None] & (d < dim)[None, :])


@triton.jit
def _column(v, number, points, row, here):
    return tl.load(v + number * points + row, mask=here, other=0.0)


@triton.jit
def _put_column(v, number, points, row, here, value):
    tl.store(v + number * points + row, value, mask=here)


@triton.jit
def _elements(x, of_set, of_element, number, n, elements, dim, dtype: tl.constexpr, DIM: tl.constexpr):  # noqa: N803
    d = tl.arange(0, DIM)
    there = (n < elements)[:, None] & (d < dim)[None, :]
    at = number * of_set + n.to(tl.int64)[:, None] * of_element + d[None, :]
    return tl.load(x + at, mask=there, other=0.0).to(dtype)


@triton.jit
def _put_elements(x, of_set, of_element, number, n, elements, dim, value, DIM: tl.constexpr):  # noqa: N803
    d = tl.arange(0, DIM)
    there = (n < elements)[:, None] & (d < dim)[None, :]
    at = number * of_set + n.to(tl.int64)[:, None] * of_element + d[None, :]
    tl.store(x + at, value.to(x.dtype.element_ty), mask=there)


@triton.jit
def _normalised(x, dim, eps, DIM: tl.constexpr):  # noqa: N803
    d = tl.arange(0, DIM)
    x = tl.where((d < dim)[None, :], x - (tl.sum(x, 1) / dim)[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 1) / dim + eps)
    return x * inverse[:, None], inverse


@triton.jit
def _normalised_backward(d_z, z, inverse, dim, DIM: tl.constexpr):  # noqa: N803
    d = tl.arange(0, DIM)
    d_z = tl.where((d < dim)[None, :], d_z, 0.0)
    second = tl.sum(d_z * z, 1) / dim
    rest = d_z - (tl.sum(d_z, 1) / dim)[:, None] - z * second[:, None]
    return tl.where((d < dim)[None, :], rest * inverse[:, None], 0.0)


@triton.jit
def _product(a, b):
    return tl.dot(a, b, input_precision="ieee", out_dtype=a.dtype)


@triton.jit
def _gather(
    x, x_set, x_element, log_m, m_set, m_element, rows, top, tops, weight, total,
    elements, dim, heads, of_head, run, eps, KNOWN: tl.constexpr,  # noqa: N803
    HEADS: tl.constexpr, OF_HEAD: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = b * tl.num_programs(1) + part
    points = heads * of_head
    row, here = _rows(heads, of_head, HEADS, OF_HEAD)
    u = _matrix(rows, 0, points, row, here, dim, DIM)
    peak = _column(top, b, points, row, here)
    c = tl.zeros((HEADS * OF_HEAD,), u.dtype)
    t = tl.zeros((HEADS * OF_HEAD, DIM), u.dtype)
    for first in range(part * run, tl.minimum((part + 1) * run, elements), BLOCK):
        n = first + tl.arange(0, BLOCK)
        z, _ = _normalised(_elements(x, x_set, x_element, b, n, elements, dim, u.dtype, DIM), dim, eps, DIM)
        s = _product(u, tl.trans(z))
        if log_m is not None:
            at = log_m + b * m_set + n.to(tl.int64) * m_element
            s += tl.load(at, mask=n < elements, other=0.0).to(u.dtype)[None, :]
        s = tl.where((n < elements)[None, :], s, float("-inf"))
        if not KNOWN:
            higher = tl.maximum(peak, tl.max(s, 1))
            factor = tl.exp(peak - tl.where(higher == float("-inf"), 0.0, higher))
            c, t, peak = c * factor, t * factor[:, None], higher
        w = tl.exp(s - tl.where(peak == float("-inf"), 0.0, peak)[:, None])
        c += tl.sum(w, 1)
        t += _product(w, z)
    _put_column(tops, slot, points, row, here, peak)
    _put_column(weight, slot, points, row, here, c)
    _put(total, slot, points, row, here, dim, t, DIM)


@triton.jit
def _gather_backward(
    x, x_set, x_element, log_m, m_set, m_element, rows, top, d_weight, d_total,
    d_x, d_x_set, d_x_element, d_log_m, d_m_set, d_m_element, d_rows, d_offset,
    elements, dim, heads, of_head, run, eps,
    HEADS: tl.constexpr, OF_HEAD: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = b * tl.num_programs(1) + part
    points = heads * of_head
    row, here = _rows(heads, of_head, HEADS, OF_HEAD)
    u, d_t = _matrix(rows, 0, points, row, here, dim, DIM), _matrix(d_total, b, points, row, here, dim, DIM)
    peak, d_c = _column(top, b, points, row, here), _column(d_weight, b, points, row, here)
    d_a = tl.zeros((HEADS * OF_HEAD,), u.dtype)
    d_u = tl.zeros((HEADS * OF_HEAD, DIM), u.dtype)
    for first in range(part * run, tl.minimum((part + 1) * run, elements), BLOCK):
        n = first + tl.arange(0, BLOCK)
        z, inverse = _normalised(_elements(x, x_set, x_element, b, n, elements, dim, u.dtype, DIM), dim, eps, DIM)
        s = _product(u, tl.trans(z)) - peak[:, None]
        if log_m is not None:
            at = log_m + b * m_set + n.to(tl.int64) * m_element
            s += tl.load(at, mask=n < elements, other=0.0).to(u.dtype)[None, :]
        w = tl.where(here[:, None] & (n < elements)[None, :], tl.exp(s), 0.0)
        d_s = w * (d_c[:, None] + _product(d_t, tl.trans(z)))  # (1), (2)
        if d_log_m is not None:  # (3)
            at = d_log_m + b * d_m_set + n.to(tl.int64) * d_m_element
            tl.store(at, tl.sum(d_s, 0).to(d_log_m.dtype.element_ty), mask=n < elements)
        d_a += tl.sum(d_s, 1)  # (4)
        d_u += _product(d_s, z)  # (5)
        if d_x is not None:
            d_z = _product(tl.trans(w), d_t) + _product(tl.trans(d_s), u)  # (6)
            value = _normalised_backward(d_z, z, inverse, dim, DIM)  # (7)
            _put_elements(d_x, d_x_set, d_x_element, b, n, elements, dim, value, DIM)
    _put_column(d_offset, slot, points, row, here, d_a)
    _put(d_rows, slot, points, row, here, dim, d_u, DIM)


@triton.jit
def _weights(k, a, z, here, HEADS: tl.constexpr, OF_HEAD: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """(HEADS, OF_HEAD, BLOCK), which sum to 1 over the points of a head; 0 where there is none."""
    s = tl.where(here[:, None], _product(k, tl.trans(z)) + a[:, None], float("-inf"))
    s = tl.reshape(s, (HEADS, OF_HEAD, BLOCK))
    peak = tl.max(s, 1)
    w = tl.exp(s - tl.where(peak == float("-inf"), 0.0, peak)[:, None, :])
    weight = tl.sum(w, 1)
    return w / tl.where(weight == 0.0, 1.0, weight)[:, None, :]


@triton.jit
def _attend(
    x, x_set, x_element, keys, offset, values, y, y_set, y_element,
    elements, dim, heads, of_head, run, eps,
    HEADS: tl.constexpr, OF_HEAD: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    points = heads * of_head
    row, here = _rows(heads, of_head, HEADS, OF_HEAD)
    k, v = _matrix(keys, b, points, row, here, dim, DIM), _matrix(values, b, points, row, here, dim, DIM)
    a = _column(offset, b, points, row, here)
    for first in range(part * run, tl.minimum((part + 1) * run, elements), BLOCK):
        n = first + tl.arange(0, BLOCK)
        tile = _elements(x, x_set, x_element, b, n, elements, dim, k.dtype, DIM)
        z, _ = _normalised(tile, dim, eps, DIM)
        p = tl.reshape(_weights(k, a, z, here, HEADS, OF_HEAD, BLOCK), (HEADS * OF_HEAD, BLOCK))
        _put_elements(y, y_set, y_element, b, n, elements, dim, tile + _product(tl.trans(p), v), DIM)


@triton.jit
def _attend_backward(
    x, x_set, x_element, keys, offset, values, d_y, d_y_set, d_y_element, d_x, d_x_set, d_x_element,
    d_keys, d_offset, d_values, elements, dim, heads, of_head, run, eps,
    HEADS: tl.constexpr, OF_HEAD: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = b * tl.num_programs(1) + part
    points = heads * of_head
    row, here = _rows(heads, of_head, HEADS, OF_HEAD)
    k, v = _matrix(keys, b, points, row, here, dim, DIM), _matrix(values, b, points, row, here, dim, DIM)
    a = _column(offset, b, points, row, here)
    d_a = tl.zeros((HEADS * OF_HEAD,), k.dtype)
    d_k = tl.zeros((HEADS * OF_HEAD, DIM), k.dtype)
    d_v = tl.zeros((HEADS * OF_HEAD, DIM), k.dtype)
    for first in range(part * run, tl.minimum((part + 1) * run, elements), BLOCK):
        n = first + tl.arange(0, BLOCK)
        z, inverse = _normalised(_elements(x, x_set, x_element, b, n, elements, dim, k.dtype, DIM), dim, eps, DIM)
        d = _elements(d_y, d_y_set, d_y_element, b, n, elements, dim, k.dtype, DIM)
        p = _weights(k, a, z, here, HEADS, OF_HEAD, BLOCK)
        d_v += _product(tl.reshape(p, (HEADS * OF_HEAD, BLOCK)), d)  # (6); d is 0 of elements that are not there
        d_p = tl.reshape(_product(v, tl.trans(d)), (HEADS, OF_HEAD, BLOCK))  # (7)
        d_s = p * (d_p - tl.sum(p * d_p, 1)[:, None, :])  # (8)
        d_s = tl.reshape(d_s, (HEADS * OF_HEAD, BLOCK))
        d_a += tl.sum(d_s, 1)  # (9)
        d_k += _product(d_s, z)  # (9)
        value = d + _normalised_backward(_product(tl.trans(d_s), k), z, inverse, dim, DIM)  # (10), (11)
        _put_elements(d_x, d_x_set, d_x_element, b, n, elements, dim, value, DIM)
    _put_column(d_offset, slot, points, row, here, d_a)
    _put(d_keys, slot, points, row, here, dim, d_k, DIM)
    _put(d_values, slot, points, row, here, dim, d_v, DIM)


KERNELS = {
    "gather": _gather,
    "gather_backward": _gather_backward,
    "attend": _attend,
    "attend_backward": _attend_backward,
}
