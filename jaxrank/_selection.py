"""`lax.top_k` as a primitive of our own, for two reasons.

It is lowered when the whole batch is known, whatever `vmap` there was, so that its shape can choose the way to select.

And on CPU XLA splits it over the devices that share a batch. JAX hands its own `top_k` to XLA as one operation that no
partitioner splits: every device gathers the whole batch. A sort of (key, position) is split along the batch; and this
very sort, under this very comparison, followed by a slice is what XLA's fast selection on CPU replaces, once it has
been split. Other platforms get JAX's own.

Keys pass a barrier: XLA would sort keys that it knows when it compiles, as labels that a function closes over, and is
slow at it (256 x 500: 15 to 24 s).
"""

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from jaxrank._arrays import wide
from jaxrank._packed import packed_top_k, pays
from jaxrank._typing import Indices, Ranked, Size


def select(keys: Float[Array, "*batch n"], count: Size, k: Size) -> tuple[Ranked, Indices]:
    """The k largest keys in descending order, equal ones in input order, and where they are; and those beyond, up to
    `count`, of which only this is certain: every key that equals the k-th is there, unless the last equals it too.
    """
    values, indices = _select_p.bind(keys, count=count, k=k)
    return values, indices


_select_p = Primitive("jaxrank_top_k")
_select_p.multiple_results = True
_select_p.def_impl(lambda keys, count, k: lax.top_k(wide(keys), count))


@_select_p.def_abstract_eval
def _abstract(keys: ShapedArray, count: Size, k: Size) -> tuple[ShapedArray, ShapedArray]:
    dtype = jnp.dtype(jnp.float32) if keys.dtype.itemsize < 4 else keys.dtype
    values = keys.update(shape=(*keys.shape[:-1], count), dtype=dtype, weak_type=False)
    return values, values.update(dtype=jnp.dtype(jnp.int32))


def _batch(arrays: Sequence, axes: Sequence, **counts: Size) -> tuple[Sequence, Sequence]:
    return _select_p.bind(jnp.moveaxis(arrays[0], axes[0], 0), **counts), (0, 0)


def _differentiate(primals: Sequence, tangents: Sequence, **counts: Size) -> tuple[Sequence, Sequence]:
    values, indices = _select_p.bind(*primals, **counts)
    nothing = [ad.Zero(array.aval.to_tangent_aval()) for array in (values, indices)]
    if type(tangents[0]) is ad.Zero:
        return (values, indices), nothing
    tangent = jnp.take_along_axis(tangents[0], indices, axis=-1)
    return (values, indices), (tangent.astype(values.dtype), nothing[1])


def _on_cpu(keys: Array, count: Size, k: Size) -> Sequence:
    by_sorting = partial(_by_sorting, keys, count)
    return packed_top_k(keys, count, k, by_sorting) if pays(keys, count, k) else by_sorting()


def _by_sorting(keys: Array, count: Size) -> Sequence:
    index = lax.broadcasted_iota(jnp.int32, keys.shape, keys.ndim - 1)
    sort = _sort_p.bind(lax.optimization_barrier(wide(keys)), index)
    return [lax.slice_in_dim(array, 0, count, axis=-1) for array in sort]


def _by_jax(keys: Array, count: Size, k: Size) -> Sequence:
    return lax.top_k(lax.optimization_barrier(wide(keys)), count)


batching.primitive_batchers[_select_p] = _batch
ad.primitive_jvps[_select_p] = _differentiate
mlir.register_lowering(_select_p, mlir.lower_fun(_by_jax, multiple_results=True))
mlir.register_lowering(_select_p, mlir.lower_fun(_on_cpu, multiple_results=True), platform="cpu")

# ------------------------------------------------------------- a descending sort that carries one more operand along

_sort_p = Primitive("jaxrank_sort")
_sort_p.multiple_results = True
_sort_p.def_abstract_eval(lambda keys, index: (keys, keys.update(dtype=index.dtype, weak_type=False)))


def _lower_sort(context: mlir.LoweringRuleContext, keys: ir.Value, index: ir.Value) -> Sequence:
    types = [ir.RankedTensorType(operand.type) for operand in (keys, index)]
    axis = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), types[0].rank - 1)
    sort = stablehlo.SortOp(types, [keys, index], dimension=axis, is_stable=ir.BoolAttr.get(True))
    scalars = [ir.RankedTensorType.get((), each.element_type) for each in types for _ in range(2)]
    block = sort.regions[0].blocks.append(*scalars)
    with ir.InsertionPoint(block):
        greater, total = stablehlo.ComparisonDirectionAttr.get("GT"), stablehlo.ComparisonTypeAttr.get("TOTALORDER")
        key, other = block.arguments[0], block.arguments[1]
        stablehlo.return_([stablehlo.compare(key, other, greater, compare_type=total)])
    return list(sort.results)  # on jax 0.8 they are no Sequence


mlir.register_lowering(_sort_p, _lower_sort)
