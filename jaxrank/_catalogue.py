"""Search of a catalogue: the k items of largest inner product, never holding the scores of all items.

Scores are matrix products of a tile of items at a time, of which only the maximum of each small group is kept. A
query's best groups are then scored once more, one item at a time, until no other group can matter: what decides is a
number that does not depend on how the products were tiled. (They are not the same on any tiling, to the last bit.)
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxrank import _arrays, metrics, ordering

Scores = Float[Array, "r k"]
Ids = Int[Array, "r k"]

# Bytes of one product's scores: the pass over them finds them in cache. 1024 x 1 000 000 x 64 takes 2.1 s with 2^22,
# 2.4 with 2^23, 2.6 with 2^24.
_TILE = 2**22
_MAXIMA = 2**28  # bytes of group maxima held at a time
_QUERIES = 1024  # that a product takes
_ROWS = 16  # queries that are scored again at a time, their groups' items in cache
_SPARE = 16  # groups beyond k: almost always enough to be certain after one look


class _Plan(NamedTuple):
    """How m items are walked through: groups of `width` in tiles, so many tiles for each choice among their groups.

    The last tile ends with the catalogue, and so may begin before the one in front of it ends.
    """

    m: int
    width: int
    groups: int  # of a tile
    tiles: int  # of a stage
    stages: int

    @property
    def tile(self) -> int:
        return self.groups * self.width

    def start(self, tile: Array) -> Array:
        return jnp.minimum(tile * self.tile, self.m - self.tile)


def _plan(b: int, m: int, d: int, k: int, itemsize: int, chunk_size: int | None) -> _Plan:
    wanted = min(m, chunk_size or max(1024, _TILE // (b * itemsize)))
    # A wider group is one maximum less to choose from, and one more item to score again for each that is chosen.
    width = 4 * (m / ((k + _SPARE) * d)) ** 0.25  # 4 for 20 000, 8 for 100 000, 16 for 1 000 000 items: as measured
    width = min(wanted, 2 ** max(0, round(math.log2(width))))
    groups = wanted // width
    tiles = -(-m // (groups * width))
    stages = -(-tiles * groups * b * itemsize // _MAXIMA)
    return _Plan(m, width, groups, -(-tiles // stages), stages)


class _Reach(NamedTuple):
    """How large the vectors are, and whether whole numbers are all they hold."""

    norm: Float[Array, "*n"]
    whole: Bool[Array, "*n"]


def _reach(vectors: Float[Array, "*n d"]) -> _Reach:
    """The norm, rounded up where squares vanish; not finite where a coordinate is not, or a square overflows."""
    d, tiny = vectors.shape[-1], jnp.finfo(vectors.dtype).tiny
    fractions = jnp.abs(vectors - jnp.round(vectors)).sum(axis=-1)
    return _Reach(jnp.sqrt(jnp.square(vectors).sum(axis=-1) + d * tiny), fractions == 0)


def _slack(queries: _Reach, items: _Reach, d: int) -> Float[Array, "*n"]:
    """By how much the two ways to compute a score may differ: each errs by d half units in the last place of |q| |x|.

    Twice that, for a margin; and nothing for whole numbers, whose sums are exact.
    """
    info, bound = jnp.finfo(queries.norm.dtype), queries.norm * items.norm
    exact = (queries.whole & items.whole & (bound < 2**info.nmant)) | (queries.norm == 0) | (items.norm == 0)
    return jnp.where(exact, jnp.zeros_like(bound), 2 * d * (info.eps * bound + info.tiny))


class _Catalogue(NamedTuple):
    items: Shaped[Array, "m d"]
    where: Bool[Array, " m"] | None
    plan: _Plan

    def tile(self, tile: Array) -> tuple[Shaped[Array, "t d"], Bool[Array, " t"]]:
        """The items of one, and which of them count. What does not may hold anything."""
        start = self.plan.start(tile)
        cut = partial(lax.dynamic_slice_in_dim, start_index=start, slice_size=self.plan.tile)
        items, counts = cut(self.items), start + lax.iota(jnp.int32, self.plan.tile) >= tile * self.plan.tile
        if self.where is None:
            return items, counts
        return jnp.where(cut(self.where)[:, None], items, jnp.zeros_like(items)), counts & cut(self.where)

    def end(self, group: Int[Array, "r 1"]) -> Int[Array, "r 1"]:
        tile = group // self.plan.groups
        return self.plan.start(tile) + (group % self.plan.groups + 1) * self.plan.width

    def find(self, items: Int[Array, "r e"]) -> tuple[Int[Array, "r e"], Int[Array, "r e"]]:
        """The group of items and their places in it; the group is not one of the catalogue where the item is not."""
        tile = items // self.plan.tile
        place = items - self.plan.start(tile)
        return tile * self.plan.groups + place // self.plan.width, place % self.plan.width

    def places(self, groups: Int[Array, "r g"]) -> tuple[Int[Array, "r g w"], Bool[Array, "r g w"]]:
        """The items of groups, and which of them count."""
        tile = groups // self.plan.groups
        first = self.plan.start(tile) + groups % self.plan.groups * self.plan.width
        places = first[..., None] + lax.broadcasted_iota(jnp.int32, (*first.shape, self.plan.width), first.ndim)
        counts = places >= (tile * self.plan.tile)[..., None]
        return places, counts if self.where is None else counts & self.where[places]


def search(
    queries: Shaped[Array, "b d"],
    items: Shaped[Array, "m d"],
    exclude: Int[Array, "b e"],
    where: Bool[Array, " m"] | None,
    k: int,
    chunk_size: int | None,
) -> tuple[Scores, Ids]:
    """The k best items of each query, equal ones by index; NaN for queries that have no scores."""
    given = lax.stop_gradient((queries, items))
    values, indices = _search(*given, exclude, where, k, chunk_size)
    return _as_scores(queries.astype(values.dtype), items.astype(values.dtype), values, indices), indices


@jax.custom_jvp
def _as_scores(queries: Float[Array, "b d"], items: Float[Array, "m d"], values: Scores, indices: Ids) -> Scores:
    """`values` with the gradient of the products that they are: a search itself has none."""
    return values


@_as_scores.defjvp
def _as_scores_jvp(primals: tuple, tangents: tuple) -> tuple[Scores, Scores]:
    queries, items, values, indices = primals
    found = jnp.maximum(indices, 0)
    product = partial(jnp.einsum, "bd,bkd->bk", precision="highest")
    tangent = product(tangents[0], items[found]) + product(queries, tangents[1][found])
    return values, jnp.where(indices < 0, jnp.zeros_like(values), tangent)


def _search(
    queries: Array, items: Array, exclude: Array, where: Array | None, k: int, chunk_size: int | None
) -> tuple[Scores, Ids]:
    b, dtype = queries.shape[0], _arrays.result_dtype(queries, items)
    if 0 in queries.shape or 0 in items.shape:
        return jnp.full((b, k), -jnp.inf, dtype), jnp.full((b, k), -1, jnp.int32)
    parts = -(-b // _ROWS)
    blocks = -(-parts * _ROWS // _QUERIES)
    split = partial(_split, shape=(blocks, -(-parts // blocks), -(-b // parts)))
    each = split(queries), split(exclude)

    def block(each: tuple[Array, Array]) -> tuple[Array, Array]:
        return _search_block(*each, items, where, k, chunk_size)

    found = lax.map(block, each) if blocks > 1 else block((each[0][0], each[1][0]))
    values, indices = (array.reshape(-1, k)[:b] for array in found)
    return values, jnp.where(jnp.isneginf(values), -1, indices)


def _split(array: Shaped[Array, "b d"], shape: tuple[int, ...]) -> Shaped[Array, "blocks parts rows d"]:
    """Blocks of queries that one product takes, of parts that are scored again together; filled up with zeros."""
    rows, width = array.shape
    return jnp.pad(array, ((0, math.prod(shape) - rows), (0, 0))).reshape(*shape, width)


def _search_block(
    queries: Shaped[Array, "p r d"],
    exclude: Int[Array, "p r e"],
    items: Shaped[Array, "m d"],
    where: Bool[Array, " m"] | None,
    k: int,
    chunk_size: int | None,
) -> tuple[Float[Array, "p r k"], Int[Array, "p r k"]]:
    parts, rows, d = queries.shape
    dtype = _arrays.result_dtype(queries, items)
    catalogue = _Catalogue(items, where, _plan(parts * rows, len(items), d, k, dtype.itemsize, chunk_size))
    reach = _reach(queries.astype(dtype))
    # Under `shard_map` what a loop carries must vary over the same axes as what it makes.
    given = [array for array in (queries, exclude, items, where) if array is not None]
    zero = jnp.stack([jnp.zeros_like(array.sum(), dtype) for array in given]).sum()

    def stage(i: Array, state: tuple) -> tuple:
        values, indices, extent = state
        first = i * catalogue.plan.tiles
        maxima, extent = _group_maxima(queries, catalogue, first, extent)
        improve = partial(_improve, catalogue, first, maxima)
        slack = _slack(reach, extent, d)[..., None]
        each = jnp.arange(parts), queries, exclude, slack, values, indices
        return *lax.map(lambda part: improve(*part), each), extent

    values = jnp.full((parts, rows, k), -jnp.inf, dtype) + zero
    state = values, jnp.full_like(values, -1, dtype=jnp.int32), _Reach(zero, zero == 0)
    values, indices, extent = lax.fori_loop(0, catalogue.plan.stages, stage, state)
    bad = ~jnp.isfinite(reach.norm * extent.norm) | ~jnp.isfinite(reach.norm + extent.norm)
    return metrics.poison(values, bad[..., None]), indices


def _group_maxima(
    queries: Shaped[Array, "p r d"], catalogue: _Catalogue, first: Array, extent: _Reach
) -> tuple[Float[Array, "p g r"], _Reach]:
    """The largest score of each group in a stage's tiles; and the extent of all items up to there.

    Queries go last, so that they fill the vector units: with items there, masks and maxima of 16 took as long as all
    but the product (1024 x 1 000 000 x 64, s: 2.3 against 1.7; the product alone takes 1.3).
    """
    plan, (parts, rows, d) = catalogue.plan, queries.shape

    def step(i: Array, state: tuple) -> tuple:
        maxima, extent = state
        items, counts = catalogue.tile(first + i)
        scores = jnp.where(counts[:, None], _product(items, queries.reshape(-1, d)), -jnp.inf)
        best = scores.reshape(plan.groups, plan.width, -1).max(axis=1)
        best = best.reshape(plan.groups, parts, rows).transpose(1, 0, 2)
        maxima = lax.dynamic_update_slice(maxima, best, (0, i * plan.groups, 0))
        reach = _reach(items.astype(maxima.dtype))
        return maxima, _Reach(jnp.maximum(extent.norm, reach.norm.max()), extent.whole & reach.whole.all())

    maxima = jnp.zeros((parts, plan.tiles * plan.groups, rows), extent.norm.dtype) + jnp.zeros_like(extent.norm)
    return lax.fori_loop(0, plan.tiles, step, (maxima, extent))


def _product(items: Shaped[Array, "t d"], queries: Shaped[Array, "b d"]) -> Float[Array, "t b"]:
    """Low precision is multiplied as it is and summed in float32; float32 is not rounded to less first.

    On CPU it is widened first, which changes no product: not every processor knows bfloat16, and one that does not
    takes 1.3 times as long.
    """
    dtype = _arrays.result_dtype(queries, items)
    over_d = (((1,), (1,)), ((), ()))

    def as_it_is(items: Array, queries: Array) -> Array:
        return lax.dot_general(items, queries, over_d, precision="highest", preferred_element_type=dtype)

    def widened(items: Array, queries: Array) -> Array:
        return as_it_is(items.astype(dtype), queries.astype(dtype))

    if queries.dtype != items.dtype or queries.dtype not in (jnp.bfloat16, jnp.float16):
        return widened(items, queries)
    return lax.platform_dependent(items, queries, cpu=widened, default=as_it_is)


def _scores(queries: Shaped[Array, "r d"], items: Shaped[Array, "m d"], places: Int[Array, "r c"]) -> Scores:
    """Scores one by one, the same to the last bit in whatever program and company an item is scored.

    A compiler may sum in any order, and may or may not round a product before it is added. So the order is spelt out,
    and products are of halves of the significand, which are exact. It takes a third longer than a plain sum.
    """
    dtype = _arrays.result_dtype(queries, items)
    high, low = _halves(queries.astype(dtype)[:, None])
    item_high, item_low = _halves(items[places].astype(dtype))
    terms = (high * item_high + high * item_low) + (low * item_high + low * item_low)
    d = terms.shape[-1]
    terms = jnp.pad(terms, ((0, 0), (0, 0), (0, 2 ** (d - 1).bit_length() - d)))
    while (half := terms.shape[-1] // 2) > 0:
        terms = terms[..., :half] + terms[..., half:]
    return terms.squeeze(-1)


def _halves(values: Float[Array, "*n"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Two numbers of half the digits that add up to each: the product of any two such is exact."""
    bits = jnp.int64 if values.dtype.itemsize == 8 else jnp.int32
    digits = jnp.finfo(values.dtype).nmant // 2 + 1
    high = lax.bitcast_convert_type(values, bits) & jnp.asarray(-(2**digits), bits)
    high = lax.bitcast_convert_type(high, values.dtype)
    return high, values - high


class _Best(NamedTuple):
    """The k best so far, and the group looked into last: groups go by maximum, descending, and then by index."""

    values: Float[Array, "r k"]
    indices: Int[Array, "r k"]
    maximum: Float[Array, "r 1"]
    group: Int[Array, "r 1"]


def _improve(
    catalogue: _Catalogue,
    first: Array,
    maxima: Float[Array, "p g r"],
    part: Array,
    queries: Shaped[Array, "r d"],
    exclude: Int[Array, "r e"],
    slack: Float[Array, "r 1"],
    values: Scores,
    indices: Ids,
) -> tuple[Scores, Ids]:
    """The k best of those so far and of a stage's items: its groups are looked into until the rest cannot matter."""
    offset, k = first * catalogue.plan.groups, values.shape[-1]

    def may_be_beaten(best: _Best) -> Bool[Array, ""]:
        worst, others = best.values[:, -1:], best.maximum + slack
        later = best.indices[:, -1:] < catalogue.end(best.group)  # with no slack, an equal score further on has lost
        tied = (others == worst) & ~((slack == 0) & later)
        return ((best.maximum > -jnp.inf) & ((others > worst) | tied)).any()

    def look(best: _Best) -> _Best:
        mine = lax.dynamic_index_in_dim(maxima, part, keepdims=False).T
        group = offset + lax.broadcasted_iota(jnp.int32, mine.shape, 1)
        left = (mine < best.maximum) | ((mine == best.maximum) & (group > best.group))
        tops, chosen = ordering.top_k(jnp.where(left, mine, -jnp.inf), min(k + _SPARE, mine.shape[-1]))
        chosen += offset
        places, counts = catalogue.places(chosen)
        counts &= (tops > -jnp.inf)[..., None]
        places, counts = (array.reshape(len(array), -1) for array in (places, counts))
        scores = jnp.where(counts, _scores(queries, catalogue.items, places), -jnp.inf)
        scores = _without(scores, chosen, exclude, catalogue)
        return _Best(*_merge(best.values, best.indices, scores, places), tops[:, -1:], chosen[:, -1:])

    start = _Best(values, indices, jnp.full_like(slack, jnp.inf), jnp.full_like(slack, -1, dtype=jnp.int32))
    best = lax.while_loop(may_be_beaten, look, start)
    return best.values, best.indices


def _without(
    scores: Float[Array, "r c"], groups: Int[Array, "r g"], exclude: Int[Array, "r e"], catalogue: _Catalogue
) -> Float[Array, "r c"]:
    """The scores of the items of groups, -inf for those excluded. Their groups are compared: fewer than the items."""
    if exclude.shape[1] == 0:
        return scores
    group, place = catalogue.find(exclude)
    slot = lax.broadcasted_iota(jnp.int32, (1, 1, groups.shape[1]), 2)
    slot = jnp.where(group[:, :, None] == groups[:, None, :], slot, -1).max(axis=-1)
    place = jnp.where(slot < 0, scores.shape[1], slot * catalogue.plan.width + place)
    return jax.vmap(lambda row, places: row.at[places].set(-jnp.inf, mode="drop"))(scores, place)


def _merge(values: Scores, indices: Ids, others: Float[Array, "r c"], places: Int[Array, "r c"]) -> tuple[Scores, Ids]:
    """The k best of both; equal scores by index, which only a sort can tell, and which is rare."""
    k = values.shape[1]
    scores = jnp.concatenate([values, others], axis=-1)
    scores = jnp.where(scores == 0, jnp.zeros_like(scores), scores)
    indices = jnp.concatenate([indices, places], axis=-1)
    more, chosen = ordering.top_k(scores, min(k + 1, scores.shape[1]))
    tied = ((more[:, 1:] == more[:, :-1]) & (more[:, 1:] > -jnp.inf)).any()

    def by_index() -> tuple[Scores, Ids]:
        negative, ordered = lax.sort((-scores, indices), num_keys=2)
        return -negative[:, :k], ordered[:, :k]

    return lax.cond(tied, by_index, lambda: (more[:, :k], ordering.take(indices, chosen[:, :k])))
