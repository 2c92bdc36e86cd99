"""How to: the smooth loss in a training step of flax or equinox, schedules, low precision, and moving from others.

This module is text; its code is run by the tests as it stands. Every recipe starts from some lists:

```python
import jax
import jax.numpy as jnp
import optax

import jaxrank

features = jax.random.normal(jax.random.key(0), (16, 20, 8))  # lists, items, features
labels = jnp.clip(jnp.round(features[..., 0] - features[..., 1] + 1), 0, 4)
where = jnp.arange(20) < 12 + jnp.arange(16)[:, None] % 9  # the rest is padding
```

## flax nnx

```python
from flax import nnx


class Scorer(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(8, 16, rngs=rngs)
        self.out = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, features):
        return self.out(nnx.relu(self.hidden(features))).squeeze(-1)


@nnx.jit
def step(model, optimizer, features, labels, where):
    def loss_fn(model):
        return jaxrank.smooth_ndcg_loss(model(features), labels, k=10, where=where)

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


model = Scorer(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
losses = [step(model, optimizer, features, labels, where) for _ in range(10)]
```

## equinox

```python
import equinox as eqx

model = eqx.nn.MLP(8, "scalar", 16, depth=1, key=jax.random.key(1))
optimizer = optax.adam(0.01)


@eqx.filter_jit
def step(model, opt_state, features, labels, where):
    def loss_fn(model):
        scores = jax.vmap(jax.vmap(model))(features)
        return jaxrank.smooth_ndcg_loss(scores, labels, k=10, where=where)

    loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
    updates, opt_state = optimizer.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state, loss


opt_state = optimizer.init(eqx.filter(model, eqx.is_array))
losses = []
for _ in range(10):
    model, opt_state, loss = step(model, opt_state, features, labels, where)
    losses.append(loss)
```

## Annealing the temperature

The temperature is traced: one compilation serves the whole schedule. A high one reaches items far below the cutoff, a
low one is closer to the metric.

```python
schedule = optax.exponential_decay(4.0, transition_steps=5, decay_rate=0.5, end_value=0.3)


@jax.jit
def step(weights, count, features, labels, where):
    def loss_fn(weights):
        return jaxrank.smooth_ndcg_loss(features @ weights, labels, k=10, where=where, temperature=schedule(count))

    loss, gradient = jax.value_and_grad(loss_fn)(weights)
    return weights - gradient, loss


weights, losses = 0.1 * jnp.ones(8), []
for count in range(20):
    weights, loss = step(weights, count, features, labels, where)
    losses.append(loss)
```

## Training in bfloat16

Scores may be bfloat16: the loss is computed in float32, and its gradient comes back in the dtype of the scores.

```python
@jax.jit
def step(weights, features, labels, where):
    def loss_fn(weights):
        scores = features.astype(jnp.bfloat16) @ weights.astype(jnp.bfloat16)
        return jaxrank.smooth_ndcg_loss(scores, labels, k=10, where=where, temperature=0.5)

    loss, gradient = jax.value_and_grad(loss_fn)(weights)
    return weights - gradient, loss  # the weights stay in float32


weights, losses = 0.1 * jnp.ones(8), []
for _ in range(20):
    weights, loss = step(weights, features, labels, where)
    losses.append(loss)
```

## The metric inside a scan

Values come one a list and are never reduced; `RankingMean` is what a loop carries, here of two cutoffs.

```python
@jax.jit
def evaluate(weights, batches):
    def add(state, batch):
        features, labels, where = batch
        values = jaxrank.ndcg_at_k(features @ weights, labels, (1, 10), where=where)
        return state.update(values, where=where.any(-1)), None

    state, _ = jax.lax.scan(add, jaxrank.RankingMean.empty((2,)), batches)
    return state


batches = jax.tree.map(lambda x: x.reshape(4, 4, *x.shape[1:]), (features, labels, where))
state = evaluate(jnp.ones(8), batches)
mean, stderr = state.mean, state.stderr
```

## Several heads

Batch axes broadcast: a head each for grades and clicks, one call, and a weight for each head.

```python
clicks = (labels > 2).astype(jnp.float32)
targets = jnp.stack([labels, clicks])  # heads, lists, items


@jax.jit
def loss_fn(weights, features, targets, where):
    scores = jnp.einsum("lnf,hf->hln", features, weights)
    return jaxrank.smooth_ndcg_loss(scores, targets, k=10, where=where, weights=jnp.array([[0.7], [0.3]]))


loss, gradient = jax.value_and_grad(loss_fn)(0.1 * jnp.ones((2, 8)), features, targets, where)
```

## Smoothing the grades

Where judgements are noisy, move each gain a little towards the mean of its list. (Smooth gains, not grades: the gain
`2^label - 1` is convex.) Evaluate on the grades as they are.

```python
gains = jaxrank.exponential_gain(labels)
smoothed = 0.9 * gains + 0.1 * gains.mean(-1, keepdims=True, where=where)
loss = jaxrank.smooth_ndcg_loss(features[..., 0], smoothed, k=10, where=where, gain_fn=jaxrank.linear_gain)
```

## Moving from other libraries

| from | there | here |
|---|---|---|
| rax | `rax.ndcg_metric(scores, labels, topn=10, where=where)` | `jaxrank.ndcg_at_k(scores, labels, 10, where=where, ties="stable").mean()` |
| rax | `rax.ndcg_metric(scores, labels, reduce_fn=None)` | `jaxrank.ndcg_at_k(scores, labels, ties="stable")` |
| rax | `rax.dcg_metric(scores, labels, topn=10, where=where)` | `jaxrank.dcg_at_k(scores, labels, 10, where=where, ties="stable").mean()` |
| rax | `rax.approx_t12n(rax.ndcg_metric, 0.1)(scores, labels, where=where)` | `jaxrank.approx_ndcg_loss(scores, labels, where=where, temperature=0.1) - 1` |
| TF-Ranking | `tfr.keras.metrics.NDCGMetric(topn=10)(labels, scores)` | `jaxrank.ndcg_at_k(scores, labels, 10).mean()` |
| TF-Ranking | `tfr.keras.losses.ApproxNDCGLoss()(labels, scores)` | `jaxrank.approx_ndcg_loss(scores, labels, temperature=0.1) - 1` |
| torchmetrics | `retrieval_normalized_dcg(scores, labels, top_k=10)` | `jaxrank.ndcg_at_k(scores, labels, 10, gain_fn=jaxrank.linear_gain)` |
| scikit-learn | `ndcg_score(labels, scores, k=10)` | `jaxrank.ndcg_at_k(scores, labels, 10, gain_fn=jaxrank.linear_gain).mean()` |
| scikit-learn | `dcg_score(labels, scores, k=10)` | `jaxrank.dcg_at_k(scores, labels, 10, gain_fn=jaxrank.linear_gain).mean()` |

`rax` and TF-Ranking minimise the negative of the value, `jaxrank` one less the value. TF-Ranking breaks ties at random.
"""  # noqa: E501 - a table's row is a line
