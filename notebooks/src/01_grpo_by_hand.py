# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # GRPO by hand
#
# One prompt, eight completions and one update of a real language model, with nothing hidden. By the end you have a working GRPO
# loss in six lines of PyTorch, you have checked it against the trainer that most people use, and in a loop of eight such updates you have watched the
# model's reward rise.
#
# **You need** Python, a rough idea of what a language model does, and what a gradient is. **You do not need** any reinforcement learning.
#
# ![The eight completions as a tree. All begin with "The": sum 0. Canberra: 5 of 8, sum +3.26, and after it the full stop with +2.31 and the comma with +0.95. Sydney: 2 of 8, sum -1.89.](../docs/tree.png)
#
# In section 6 you will read this picture: eight answers of a real model as a tree. A box shows how many of the eight go
# through it, and the sum of their advantages.
#
# About 3 minutes on two idle CPU cores (and an hour of reading), under 5 GB of memory and 0.3 GB of disk. No GPU needed. The model is SmolLM2-135M:
# small, fast and often wrong, which is exactly what we want here.
#
# How to read on: write each prediction down, look at the output of the next cell, and only then open the fold.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings and model
#
# Leave the settings for the first run. Another seed samples other completions, and then your numbers differ from those in the text.
#
# `load_model` loads the model and puts a *LoRA* on it: small matrices next to the large frozen weights. Only the LoRA is trained.

# %% tags=["parameters"]
SEED = 0  # @param {"type": "integer"}
STEPS = 8  # @param {"type": "integer"}

# %%
import matplotlib.pyplot as plt
import pandas
from matplotlib_inline.config import InlineBackend

settings = gn.preset("cpu", dtype="float32")  # the small model, also on a GPU
model, tokenizer = gn.load_model(settings, report=print)

import torch  # below load_model: Unsloth wants to be imported first
from torch.nn.utils import parameters_to_vector, vector_to_parameters

lora = [weight for weight in model.parameters() if weight.requires_grad]
print(f"{sum(weight.numel() for weight in lora):,} LoRA weights to train")
# Grey text without a background is readable in light and dark notebooks.
grey = dict.fromkeys(
    ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], "#797979"
)
titles = {"axes.titlelocation": "left", "axes.titleweight": "bold"}
open_axes = {"axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": "none"}
plt.rcParams.update({"figure.autolayout": True, **titles, **open_axes, **grey})
InlineBackend.instance().print_figure_kwargs = {"facecolor": "none", "bbox_inches": "tight"}
left = {"completion": [{"selector": "", "props": "text-align: left"}]}

# %% [markdown]
# ## The idea
#
# Ask the model the same question several times. It does not give the same answer each time, because it *samples* its words.
# Some of the answers are better than others. So score them, and change the weights a little, so that the answers above the
# average of their group become more likely and those below become less likely. Repeat. That is GRPO: *group relative policy
# optimization*.
#
# Nobody shows the model a correct answer. **It can only do more often what it already does sometimes.**
#
# <details><summary>Words that other texts use</summary>
#
# *Policy* is the model, *action* a token, *rollout* a completion, and *on-policy* means sampled from the current weights. *RLHF* trains on
# the scores of a second network, a *reward model*, which predicts what people prefer. Here a program gives the score.
# </details>
#
# "How far above the average" is called the **advantage**. For completion $i$ with reward $r_i$ it is
#
# $$A_i = \frac{r_i - \text{mean}(r)}{\text{std}(r) + 0.0001}$$
#
# Here std is the standard deviation of a sample, with $n - 1$, as `torch.std` computes it. The 0.0001 only prevents a division by zero.
#
# ![One GRPO step: the model writes four completions to the question for the capital of Australia. Their rewards 1.5, 1.0, 1.0 and 0.5 become the advantages +1.22, 0, 0 and -1.22. The first is pushed up, the last is pushed down.](../docs/grpo.png)
#
# ## 1. One prompt, eight completions
#
# ***sample** → advantage → log-probability → loss → clipping and KL → step → check → repeat*
#
# Now with the real model. `apply_chat_template` wraps the question in the markers that the model was trained with, and
# `generate` samples eight answers of at most 24 tokens (a token is a word or a piece of one). With `temperature=1.0` and
# `top_k=0` it uses the model's own probabilities, which the loss below needs.
#
# A **reward** is any function that turns a completion into a number. Ours gives one point for *Canberra* without *Sydney*, and half a point for at
# most eight words. When you read the table, cover its last column and score the eight yourself first.


# %%
question = [{"role": "user", "content": "What is the capital of Australia?"}]
template = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
prompt = tokenizer.apply_chat_template(question, **template).to(model.device)
prompt_length = prompt["input_ids"].shape[1]


def sample(number):
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 24}
    sampled = model.generate(**prompt, **sampling, num_return_sequences=number)
    return sampled[:, prompt_length:].cpu()


def reward(text):
    names_the_capital = "Canberra" in text and "Sydney" not in text
    is_short = len(text.split()) <= 8
    return 1.0 * names_the_capital + 0.5 * is_short


torch.manual_seed(SEED)
completions = sample(8)
texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
rewards = torch.tensor([reward(text) for text in texts])
table = pandas.DataFrame({"completion": texts, "reward": rewards})
table.style.format(precision=1, escape="html").set_table_styles(left)

# %% [markdown]
# ## 2. Advantages
#
# *sample → **advantage** → log-probability → loss → clipping and KL → step → check → repeat*
#
# The formula from above in Python.
#
# **Predict before you run:** which completions will be pushed up, and which down? And what happens to a group in which all
# eight rewards are equal?
#
# <details><summary>What you should see</summary>
#
# * A reward above zero is not enough: *Sydney.* earned half a point for being short, and still lies below its group.
# * The group decides. In the picture of *The idea* the mean is 1.0, here it is 0.81: the same reward of 1.0 gets 0 there and +0.32 here.
# * The advantages of a group add up to zero: some completions gain at the expense of others.
# * Where all rewards are equal, every advantage is exactly 0. The model learns nothing from that prompt, whether all answers were
#   perfect or all were wrong. This is a common reason why a GRPO run does not get anywhere.
# </details>
#
# Why divide by the standard deviation? It puts all prompts on one scale: a group with rewards between 0 and 100 does not drown
# a group with rewards between 0 and 1. (The last exercise shows the price.)


# %%
def advantages_of(rewards):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-4)


advantages = advantages_of(rewards)

mean, std = rewards.mean(), rewards.std()
print(
    f"mean {mean:.4f}, standard deviation {std:.4f}, sum of advantages {advantages.sum().abs():.4f}"
)
print(f"completion 0: ({rewards[0]:.1f} - {mean:.4f}) / {std:.4f} = {advantages[0]:+.2f}")
print("a group in which all rewards are 1.5:", advantages_of(torch.full((8,), 1.5)).tolist())
table = pandas.DataFrame({"reward": rewards, "advantage": advantages, "completion": texts})
table = table.sort_values("advantage", ascending=False)
numbers = {"reward": "{:.1f}", "advantage": "{:+.2f}"}
table.style.format(numbers, escape="html").set_table_styles(left)

# %% [markdown]
# **Only the distance to the group counts: a reward above zero can still be pushed down, and a group with equal rewards teaches nothing.**
#
# ## 3. How likely was each completion?
#
# *sample → advantage → **log-probability** → loss → clipping and KL → step → check → repeat*
#
# "Make a completion more likely" needs a number for *how likely*. A language model gives a probability to every possible next
# token, and the probability of a completion is the product of the probabilities of its tokens. A logarithm turns the
# product into a sum:
#
# $$\log p(\text{completion}) = \sum_t \log p(\text{token}_t)$$
#
# A log-probability of 0 means certain, −0.7 means one in two, −2.3 means one in ten. The model returns a *logit* $z$ for each of
# its 49,152 tokens, and the log-probability of token $k$ is $z_k - \log \sum_j e^{z_j}$: the function `logsumexp`.
#
# One detail trips up nearly everyone: the output at position $t$ is the prediction for position $t+1$. That is why the slice
# begins one place before the completion.
#
# **Predict before you run:** at which two tokens of *The capital of Australia is Canberra.* is the model least sure?
#
# <details><summary>What you should see</summary>
#
# It is fairly certain of each word up to *is*, and undecided where it matters: which city (66 %), and whether the sentence ends after it
# (51 %). These are the places where it can learn something.
# </details>


# %%
def token_log_probs(completions):
    """Return the log-probability of each token of each completion, shape (completions, tokens)."""
    repeated = prompt["input_ids"].cpu().expand(len(completions), -1)
    ids = torch.cat([repeated, completions], dim=1).to(model.device)
    logits = model(input_ids=ids).logits[:, prompt_length - 1 : -1].cpu()
    chosen = logits.gather(-1, completions[:, :, None])[:, :, 0]
    return chosen - logits.logsumexp(dim=-1)


log_probs = token_log_probs(completions)
mask = (completions != tokenizer.pad_token_id).float()  # 0 for the padding after a short completion
best = int(advantages.argmax())
best_tokens = completions[best][mask[best] == 1]
shown = log_probs[best][mask[best] == 1].detach()
print(f"{texts[best]}  Sum {shown.sum():.2f}: one time in {(-shown.sum()).exp():.0f}")
tokens = [repr(tokenizer.decode(token)) for token in best_tokens]
table = pandas.DataFrame({"token": tokens, "probability": shown.exp(), "log-probability": shown})
share_bar = {"vmin": 0, "vmax": 1, "width": 60, "color": "#007FC666"}
table.style.format(precision=2, escape="html").bar(["probability"], **share_bar).hide()

# %% [markdown]
# ## 4. The loss, first version
#
# *sample → advantage → log-probability → **loss** → clipping and KL → step → check → repeat*
#
# An optimizer makes a number smaller. So we need one that gets smaller when good completions become more likely:
# $$L = -\frac{1}{8}\sum_{i=1}^{8} A_i \cdot \frac{1}{T_i}\sum_{t=1}^{T_i} \log p(\text{token}_{i,t})$$
#
# Read it from the right:
#
# * Average the log-probabilities over the $T_i$ tokens of completion $i$. So each completion has the same weight, whatever its length.
# * Multiply by the advantage: positive pushes up, negative pushes down. Then average over the group. The minus sign is there because optimizers minimise.
#
# **How much does each token count?** Every loss divides the sum over the tokens by something:
#
# | divided by | so | name in TRL | where |
# | --- | --- | --- | --- |
# | the length $T_i$ of its own text | every *text* counts the same | `grpo` | here, and in the first paper |
# | the number of all tokens in the batch | every *token* counts the same | `bnpo`, `dapo` | the quickstart; the tree of section 6 |
# | a fixed number, 8 texts · 24 | every token counts the same, in every batch | `dr_grpo` | exercise 3 ([all losses](../docs/reference/losses.md)) |
#
# If you have fine-tuned a model, you know this loss: with all $A_i = 1$ it is the cross-entropy of supervised fine-tuning on these eight
# texts, averaged per text. GRPO changes two things. The model writes the texts itself, and each text gets a weight. A negative weight says: write this
# less often.
#
# The value of the loss means nothing by itself. What counts is its **gradient** $\nabla$: for each of the LoRA weights a number that says in
# which direction the loss grows, and how fast.
#
# An example: *The capital of Australia is Canberra.* has eight tokens and the log-probability −1.81 (section 3). So its mean is −1.81 / 8 = −0.226,
# and its term is −1.157 · −0.226 = +0.26. The loss is the mean of the eight terms in the table below.
#
# **Predict before you run:** does the text with the largest term (plus or minus) also have the hardest push on each token?
#
# <details><summary>What you should see</summary>
#
# No. The largest is −4.52, of the long rambling text. It is so large because its tokens are unlikely: −3.31 on average. What pushes a token is
# $A_i / T_i$, the last column: −1.37 / 24 = −0.06 for this text, and +1.16 / 8 = +0.14 for *The capital of Australia is Canberra.* So the value of
# the loss says little about the step.
# </details>

# %%
per_token = -advantages[:, None] * log_probs
loss = ((per_token * mask).sum(dim=1) / mask.sum(dim=1)).mean()


def gradient_of(loss):
    """Return the gradient with respect to all LoRA weights as one long vector."""
    parts = torch.autograd.grad(loss, lora, retain_graph=True)
    return torch.cat([part.flatten().cpu() for part in parts]).double()


plain_gradient = gradient_of(loss)
print(f"loss {loss:.4f}; the gradient has {len(plain_gradient):,} numbers")
mean_log_probs = ((log_probs * mask).sum(dim=1) / mask.sum(dim=1)).detach()
table = {"completion": texts, "advantage": advantages, "mean log-probability": mean_log_probs}
table |= {"term": -advantages * mean_log_probs, "push per token": advantages / mask.sum(dim=1)}
table = pandas.DataFrame(table).sort_values("advantage", ascending=False)
signs = dict.fromkeys(["advantage", "term", "push per token"], "{:+.2f}")
table.style.format(signs, precision=2, escape="html").set_table_styles(left)

# %% [markdown]
# **The push on a token is the advantage of its text, divided by the length of the text. The value of the loss says little.**
#
# ### Why subtract the mean?
#
# * *An example:* a question has two possible answers. The right one has the probability $p$ = 0.2 and earns 11, the other one earns 10. So the mean
#   reward is 0.2 · 11 + 0.8 · 10 = 10.2.
# * *A move:* a drawn text moves the weights along the gradient of its own log-probability, times a factor. The factor is its reward, or its reward
#   minus 10.2.
# * *One unit for both:* $\nabla p$ is the direction that makes the right answer more likely. The gradients are $\nabla \log p = \nabla p / 0.2 = 5 \nabla p$
#   and $\nabla \log (1 - p) = -\nabla p / 0.8 = -1.25 \nabla p$. So each move is a number times $\nabla p$:
#
# | drawn | how often | gradient | move, factor = reward | move, factor = reward − 10.2 |
# | --- | --- | --- | --- | --- |
# | the right answer | 0.2 | +5 | 11 · 5 = +55 | 0.8 · 5 = +4 |
# | the other one | 0.8 | −1.25 | 10 · −1.25 = −12.5 | −0.2 · −1.25 = +0.25 |
# | **average** | | | **+1** | **+1** |
#
# **The step follows the mean reward.** The mean reward of this question is $11 p + 10 (1 - p) = 10 + p$, so its gradient is $\nabla p$: the +1 in the last row. No step knows $p$, and yet on average it climbs the mean reward. The logarithm does it: the right answer is drawn in only one of five cases, and $\nabla \log p = 5 \nabla p$ makes it count five times. With $p$ in place of $\log p$ the average would be 0.2 · 11 − 0.8 · 10 = −5.8: away from the right answer, because the other one is drawn more often.
#
# [On average](../docs/reference/losses.md#why-the-mean-may-be-subtracted) both factors do the same. But without the mean, single draws pull far in opposite directions, and a group has only eight. With the mean every move is small and points the right way. (PPO, the method before GRPO, trains a second model that estimates this mean. GRPO takes it from the group.)
#
# ## 5. The loss, complete: ratio, clipping and KL
#
# *sample → advantage → log-probability → loss → **clipping and KL** → step → check → repeat*
#
# Sampling is slow, so one would like to use a batch of completions for several steps. After the first step, however, they come from a model that no longer exists. Two ideas of PPO handle this. (In the first step nothing has moved: the ratio is 1, the KL is 0, and the gradient is that of section 4.)
#
# **Ratio.** $\rho = p_{\text{new}} / p_{\text{old}}$ says how much more likely a token is now than when it was sampled. The new model would draw a token with $\rho = 2$ twice as often. We do not draw again, so we count it twice: the **gain** of a token is $\rho A$, and the loss is minus the mean gain.
#
# **Clipping.** Without it, further steps on the same batch would push the same token on and on. Once the probability of a token has changed by more than 20 % (`epsilon`) *in the direction that its advantage asks for*, its gain no longer grows. So the slope is 0, and the token is not pushed any more. A token that has moved the wrong way is never clipped, so it is always pushed back.
#
# ![Left: the gain of a token against the ratio. With advantage +1 it rises and is flat above 1.2; with advantage -1 it is flat below 0.8 and falls. Right: the KL cost of a token against d. It is 0 at d = 0 and positive elsewhere.](../docs/loss.png)
#
# **Predict before you run:** of four tokens, two have the advantage +1 and two −1. In each pair one has $\rho = 0.7$ and one $\rho = 1.3$. Which two are no longer pushed? The column *slope* is the gradient of the gain with respect to the ratio.
#
# <details><summary>What you should see</summary>
#
# A slope of 0 for the second and the third token: each has moved 30 % in the wanted direction.
# </details>
#
# **KL.** A third part keeps the model near its start, the *reference*: here the same model with its LoRA switched off. Let $d = \log p_{\text{ref}} - \log p$ for a token. It costs $e^d - d - 1$ (right half of the figure): 0 where both models agree, and more the further $d$ is from 0, in either direction. An example: at one place the model has two tokens with 0.8 and 0.2, the reference 0.5 and 0.5.
#
# | drawn | how often | $-d$ | $e^d - d - 1$ |
# | --- | --- | --- | --- |
# | the first | 0.8 | +0.47 | 0.10 |
# | the second | 0.2 | −0.92 | 0.58 |
# | **average** | | **0.19** | **0.19** |
#
# Both averages are the *KL divergence* of the two models. But a single $-d$ may be negative, and the cost never is. A single draw of the cost spreads by 0.20 (its standard deviation), one of $-d$ by 0.55. So the mean of the cost over eight texts is steadier. `beta` says how much the KL counts: 0 in many recent recipes, 0.04 in the first GRPO paper ([what four values do](../docs/reference/losses.md#what-beta-costs)). With 0.04 this place costs 0.008, against advantages of about 1: it brakes, and does not stop.
#
# <details><summary>Why does the code multiply the cost by the ratio?</summary>
#
# For the same reason as the gain: the tokens were drawn by the old model, so each is counted $\rho$ times. Before the first step $\rho$ is 1 and the cost is 0, so nothing changes. From the second step on it shows: mistake 4 of section 7 ([more](../docs/reference/losses.md#why-this-cost-for-the-kl)).
# </details>


# %%
def grpo_loss(log_probs, old, reference, advantages, mask, epsilon=0.2, beta=0.04):
    """Return the GRPO loss of TRL. The first three arguments have a row per completion."""
    ratio = torch.exp(log_probs - old)
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon)
    gain = torch.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
    kl = ratio * (torch.exp(reference - log_probs) - (reference - log_probs) - 1)
    per_token = beta * kl - gain
    return ((per_token * mask).sum(dim=1) / mask.sum(dim=1)).mean()


old = log_probs.detach()
with torch.no_grad(), model.disable_adapter():
    reference = token_log_probs(completions)
first_loss = grpo_loss(log_probs, old, reference, advantages, mask)
first_gradient = gradient_of(first_loss)
difference = (first_gradient - plain_gradient).norm() / plain_gradient.norm()
print(f"loss {first_loss:.4f}; the gradient differs from that of section 4 by {difference:.1g}")

ratio = torch.tensor([0.7, 1.3, 0.7, 1.3], requires_grad=True)  # the four tokens
advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
(slope,) = torch.autograd.grad(gain.sum(), ratio)
table = {"advantage": advantage, "ratio": ratio.detach(), "gain": gain.detach(), "slope": slope}
pandas.DataFrame(table).style.format(precision=1).hide()

# %% [markdown]
# **Clipping acts only where a batch is used again. The KL acts as soon as the model has left its start.**
#
# ## 6. One step
#
# *sample → advantage → log-probability → loss → clipping and KL → **step** → check → repeat*
#
# Move each LoRA weight a little against its gradient: `weight -= 0.1 * gradient`. That is what SGD does.
#
# **Where people stumble:** the complete loss is **0** before the step, and not −0.654. The ratio is 1 and the KL is 0, so what is left is minus
# the mean of the advantages. But a loss of zero is not a gradient of zero! The gradient is that of section 4, because
# at the start the ratio and the log-probability change at the same rate ($\nabla\rho = \nabla\log p$ where $\rho = 1$). So do not judge a GRPO run by its loss. Look at the reward.
#
# **Predict before you run:** the bars show how much more or less likely each whole completion became. Is a bar twice as long where
# the advantage is twice as large?
#
# <details><summary>What you should see</summary>
#
# The bars of advantages above zero point to the right, the others to the left. A label such as × 1.58 means that this
# exact completion is now 1.58 times as likely. The length does not follow the advantage alone:
#
# * The gradient of $\log p$ is small for a token that is likely already. A short right answer has few tokens, most of them likely.
# * The bar adds up the changes of all tokens, and texts that begin alike move together.
#
# That is why 24 unlikely tokens with −1.37 end at × 0.03 and × 0.09, and eight likely ones with +1.16 only at × 1.58. The three texts with +0.32 show
# it too: the two with unlikely tokens (mean log-probability −2.58 and −1.90 in section 4) rise by × 1.47 and × 1.45, the third (−0.67) only by × 1.18.
# This is a tendency, not a law: of the two long bad texts, the one with the likelier tokens falls more.
#
# The loss on the same eight completions is now *below* zero: the ratio of good completions is above 1 and that of bad ones below 1,
# so the average gain is positive, and the loss is its negative.
# </details>

# %%
start = parameters_to_vector(lora).detach().clone()  # to come back to
optimizer = torch.optim.SGD(lora, lr=0.1)
first_loss.backward()
optimizer.step()

log_probs = token_log_probs(completions)
second_loss = grpo_loss(log_probs, old, reference, advantages, mask)
second_gradient = gradient_of(second_loss)
print(f"loss {first_loss:.3f} before the step, {second_loss:.3f} after it")

change = ((log_probs - old) * mask).sum(dim=1).detach()
order = advantages.argsort()  # the best last, because barh begins at the bottom
figure, axes = plt.subplots(figsize=(10, 3.6))
colours = ["#C75800" if advantages[i] < 0 else "#008A65" for i in order]
bars = axes.barh(range(8), change[order], color=colours)
axes.bar_label(bars, [f"× {factor:.2f}" for factor in change[order].exp()], padding=4)
names = [texts[i][:40] + "…" * (len(texts[i]) > 40) for i in order]
axes.set_yticks(range(8), [f"{name}  {advantages[i]:+.2f}" for name, i in zip(names, order)])
axes.set_title("Change of log-probability (×: factor of the probability)")
legend = {"loc": "center left", "frameon": False}
axes.legend([bars[-1], bars[0]], ["advantage above 0", "advantage below 0"], **legend)
axes.margins(x=0.18)

# %% [markdown]
# ### Which token was good?
#
# GRPO does not know: all tokens of a completion get the same advantage. But completions with the same beginning share their first tokens, and
# there only the sum of their advantages counts. So think of the eight texts as a tree:
#
# ![The eight completions as a tree. All begin with "The": sum 0. Canberra: 5 of 8, sum +3.26, and after it the full stop with +2.31 and the comma with +0.95. Sydney: 2 of 8, sum -1.89.](../docs/tree.png)
#
# *Box:* how many of the eight texts pass it, and the sum of their advantages; green above 0, orange below, blue: the two that you will predict. *Line,*
# where given: the probability of this continuation. Each token counts the same here.
#
# On *The* the advantages cancel. Where the texts part, they do not: *Canberra* is pushed up, *Sydney* down. **The comparison within the group
# finds the words that matter.**
#
# Why does a branch win? At a fork the model shares out 100 %. Take a branch with the probability $p$. Each text on this branch pushes its logit
# up by $A (1 - p)$, and each text on another branch of the fork pushes it down by $A\,p$. With a negative $A$ it is the other way round. (That is the gradient of a log-softmax: $1 - p$ for
# the drawn token, and $-p$ for each other one.) For the full stop after *Canberra*, with $p$ = 0.51:
#
# | texts at this fork | sum of $A$ | times | push on the full stop |
# | --- | --- | --- | --- |
# | 2 with the full stop | +2.31 | 1 − 0.51 | +1.13 |
# | 3 with the comma | +0.95 | −0.51 | −0.48 |
# | **all 5** | +3.26 | | **+0.65** |
#
# Or in one line:
#
# $$\text{push(branch)} = \text{sum(branch)} - p\text{(branch)} \cdot \text{sum(fork)}$$
#
# In short: a branch gains when its mean advantage is above that of its fork (if it was drawn about as often as $p$ says). Expect the direction from the rule, not the size, because all branches
# share their weights.
#
# **Predict before you run:** the comma has $p$ = 0.47 and the sum +0.95, which is above zero. Is it pushed up?
#
# <details><summary>What you should see</summary>
#
# No: 0.95 − 0.47 · 3.26 = −0.58. (The output has +0.67 for the full stop, because it does not round before.) The model agrees: the full
# stop goes from 0.51 to 0.58, and the comma from 0.47 to 0.39, **although its own sum is positive**. The mean advantage of the three texts
# with the comma is +0.32, of all five with *Canberra* +0.65: the comma is below the average of its fork.
#
# Would a second step on this batch be clipped? *Sydney* has the ratio 0.20 / 0.31 = 0.65, below 0.8, and its advantage is
# negative: it would no longer be pushed. *Canberra* has 0.77 / 0.66 = 1.17 and would still be pushed. So clipping is a safety belt. It acts only if a
# batch is used for more than one step, and the quickstart uses each batch once.
#
# The rule has two limits. Exercise 1 shows what happens if a branch was not drawn about as often as $p$ says. And the rule counts each token the same. With the $1/T_i$ of section 4, +0.15 remains on *The*, and at the two later forks no push
# changes its sign.
# </details>


# %%
def probability_of(branch, parent, log_probs):
    """Return the probability that a completion goes on from the text `parent` to `branch`."""
    row = [text.startswith(branch) for text in texts].index(True)
    begin, end = (len(tokenizer(part)["input_ids"]) for part in (parent, branch))
    return log_probs[row, begin:end].sum().exp().item()


def sum_at(beginning):
    """Return the sum of the advantages of all completions with this beginning."""
    return sum(a.item() for a, text in zip(advantages, texts) if text.startswith(beginning))


trunk = "The capital of Australia is"
city = f"{trunk} Canberra"
parents = {trunk: "The", f"{trunk} Sydney": trunk, city: trunk, f"{city}.": city, f"{city},": city}
rows = {}
for branch, parent in parents.items():
    if any(text.startswith(branch) for text in texts):  # with another SEED it may be missing
        before, after = (probability_of(branch, parent, one) for one in (old, log_probs))
        push = sum_at(branch) - before * sum_at(parent)
        rows[branch] = {"sum": sum_at(branch), "push": push, "p before": before, "p after": after}
signs = {"sum": "{:+.2f}", "push": "{:+.2f}"}
pandas.DataFrame(rows).T.style.format(signs, precision=2)

# %% [markdown]
# **A branch gains when its mean advantage is above that of its fork.**
#
# ## 7. Is this really GRPO?
#
# *sample → advantage → log-probability → loss → clipping and KL → step → **check** → repeat*
#
# Do not take our word for it. TRL's `GRPOTrainer` is what most people train with, and what `gn.train` is built on. Give it the
# same model and reward, and through `rollout_func` the same eight completions. Let it take two steps on them, and compare losses and
# gradients with ours: before the first step, where nothing has moved, and after it, where ratio, clipping and KL take part. (TRL's defaults are
# another average over tokens and `beta` 0. The cell sets both as in our loss.)
#
# **You should see** that the losses agree to six decimals, and the gradients to about five digits. Such a check finds mistakes that no reward curve shows.
#
# **Four mistakes to try.** Each of these changes is easy to make. Choose one and predict four answers: do loss and gradient still agree with TRL's,
# before the step and after it? Then try it: restart the kernel and run all cells.
#
# 1. `maximum` in place of `minimum` where the advantage is negative,
# 2. `kl = log_probs - reference`,
# 3. the slice `logits[:, prompt_length:]` in section 3,
# 4. no `ratio *` in front of the KL term.
#
# <details><summary>Answer: the four mistakes (the cell below shows the row <i>right</i>)</summary>
#
# | | loss, line 1 | gradient, line 1 | loss, line 2 | gradient, line 2 |
# | --- | --- | --- | --- | --- |
# | right | 0, agrees | agrees | −0.0422, agrees | agrees |
# | 1 | 0, agrees | agrees: no ratio has moved | −0.0536, differs | differs by 0.51 (relative to ours): *Sydney* is pushed on |
# | 2 | 0, agrees | differs by 0.03: $-d$ has a slope at 0, $e^d - d - 1$ has none | −0.0430, differs | differs by 0.23 |
# | 3 | 0, agrees | differs by 1.06: other tokens are pushed | +1.48, differs | differs by 1.00 |
# | 4 | 0, agrees | agrees: reference and model are still equal | −0.0420, differs | differs by 0.02 |
#
# Before a step the loss shows none of the four mistakes, and the gradient shows two (2 and 3). After a step both show all four. But the loss shows the fourth only in its fourth
# decimal, and the second by 2 %, where the gradient differs by 23 %. **So compare after a step, and compare the gradients.**
# </details>

# %%
import os

from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

# Without this, TRL warns that rollout_func may change in later versions.
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"


def our_completions(prompts, trainer):
    written = [ids[is_token == 1].tolist() for ids, is_token in zip(completions, mask)]
    prompt_ids = prompt["input_ids"].tolist() * 8
    return {"prompt_ids": prompt_ids, "completion_ids": written, "logprobs": None}


def our_reward(completions, **columns):
    return [reward(messages[0]["content"]) for messages in completions]


class KeepGradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **others):
        gradients.append(torch.cat([weight.grad.flatten().cpu() for weight in lora]).double())


# %%
gradients = []
vector_to_parameters(start.clone(), lora)  # back to where we started
question_as_data = Dataset.from_list([{"prompt": question}])
same = {"loss_type": "grpo", "beta": 0.04, "epsilon": 0.2, "num_generations": 8}  # as above
same |= {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant"}
same |= {"max_steps": 2, "num_iterations": 2, "max_grad_norm": 0.0}  # the same completions twice
rest = {"gradient_checkpointing": False, "bf16": False, "save_strategy": "no"}
rest |= {"report_to": "none", "disable_tqdm": True, "logging_steps": 1}
config = GRPOConfig("runs/by_hand", **same, **rest)
own = {"rollout_func": our_completions, "callbacks": [KeepGradients], "processing_class": tokenizer}
trainer = GRPOTrainer(model, our_reward, config, question_as_data, **own)
trainer.remove_callback(PrinterCallback)
trainer.train()
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
model.delete_adapter("ref")  # TRL's copy of the LoRA, the reference of its KL term

differences = []
ours = [(first_loss, first_gradient), (second_loss, second_gradient)]
for (loss, gradient), trl_loss, trl_gradient in zip(ours, losses, gradients):
    difference = (gradient - trl_gradient).norm() / gradient.norm()
    differences.append(difference)
    print(f"loss: ours {loss:.7f}, TRL {trl_loss:.7f}; gradients differ by {difference:.1e}")

# %% [markdown]
# ## 8. Eight steps
#
# *sample → advantage → log-probability → loss → clipping and KL → step → check → **repeat***
#
# A training is the same in a loop, with fresh completions in every step. This cell is the whole of GRPO on one screen, for one prompt. With
# several prompts each has its own group, and the loss is averaged over all.
#
# We start again from the original model, and use AdamW, as real runs do. It moves each weight by about the learning rate, so that rate is
# small: 0.0002. Each batch is used for one step only, so the ratio is 1 and nothing is clipped.
#
# **Predict before you run:** what happens to the standard deviation of the eight rewards as their mean nears 1.5, the most that a completion can
# earn? What does a step then teach?
#
# <details><summary>What you should see</summary>
#
# * The mean reward rises from about 0.8 to about 1.5.
# * The standard deviation rises in step 2 and falls to 0 in step 5. There all advantages are 0, and the rewards teach nothing: only the KL term and
#   AdamW's momentum still move the weights. In step 6 one text earns 1.0, so it is above 0 once more. Watch this number in your own runs.
# * The KL does not rise smoothly: it is a mean over only eight completions, and one unusual text raises it, as in step 6.
# * In the last group the rambling is gone, and nearly all completions are the same. So this prompt has nothing more to teach.
# </details>

# %%
vector_to_parameters(start.clone(), lora)
optimizer = torch.optim.AdamW(lora, lr=2e-4)
history = []
torch.manual_seed(SEED)
for step in range(STEPS):
    completions = sample(8)
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
    rewards = torch.tensor([reward(text) for text in texts])
    log_probs = token_log_probs(completions)
    with torch.no_grad(), model.disable_adapter():
        reference = token_log_probs(completions)
    mask = (completions != tokenizer.pad_token_id).float()
    loss = grpo_loss(log_probs, log_probs.detach(), reference, advantages_of(rewards), mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    d = (reference - log_probs).detach()
    kl = ((d.exp() - d - 1) * mask).sum() / mask.sum()
    history.append(torch.stack([rewards.mean(), kl, rewards.std()]).tolist())
names = ["mean reward", "KL per token", "standard deviation"]
history = pandas.DataFrame(history, range(1, STEPS + 1), names)
panels = {"subplots": True, "layout": (1, 3), "figsize": (10, 2.6), "legend": False, "title": names}
history.plot(**panels, style="o-", color="#007FC6", xlabel="step", ylim=(0, None), clip_on=False)
plt.show()
pandas.Series(texts).value_counts().to_frame("count in the last group")

# %% [markdown]
# ## Did it work?
#
# Two questions decide. Do our gradients agree with TRL's? And did the mean reward rise, from the first two steps to the last two? This is
# the prompt that was trained on. Whether a model got better at new questions is what [the quickstart](00_quickstart.ipynb) tests.
#
# Section 3 asked how likely the best completion of the first group is, token by token. Ask again. **Predict before you
# run:** which two probabilities have changed most? And does an answer change to a question that was never trained, the capital of Canada?
#
# <details><summary>What you should see</summary>
#
# *Canberra* went from 66 % to nearly 100 %, and the full stop after it from 51 % to 90 %: the two forks of the tree on the way to
# this sentence. The model now writes it five times out of six, and wrote it one time in six before. *The* rose too. The tree has 0 there, because it
# counts each token the same. The loss divides by the length, which leaves +0.15 on *The* in the first group, and seven more groups followed.
#
# *The capital of Canada is Ottawa, Canada.* became *The capital of Canada is Ottawa.* The city was right before, so the model has not learned geography. What
# carried over to the new question is the form: the sentence ends after the city. This is one question. A real training has hundreds of prompts, and
# many held-out questions to test it.
# </details>

# %%
agrees = all(difference < 1e-4 for difference in differences)
mean_rewards = history["mean reward"]
first, last = mean_rewards.iloc[:2].mean(), mean_rewards.iloc[-2:].mean()
with torch.no_grad():
    now = token_log_probs(best_tokens[None])[0]
other_question = [{"role": "user", "content": "What is the capital of Canada?"}]
canada = tokenizer.apply_chat_template(other_question, **template).to(model.device)
greedy = {"do_sample": False, "max_new_tokens": 24}
with model.disable_adapter():
    answer_before = model.generate(**canada, **greedy)
for name, ids in (("before", answer_before), ("now", model.generate(**canada, **greedy))):
    written = tokenizer.decode(ids[0, canada["input_ids"].shape[1] :], skip_special_tokens=True)
    print(f"Canada, {name}: {written}")
print(f"The best completion of the first group: one time in {(-now.sum()).exp():.1f}")
table = pandas.DataFrame({"token": tokens, "before": shown.exp(), "now": now.exp()})
display(table.style.format(precision=2, escape="html").bar(["before", "now"], **share_bar).hide())
print(f"Gradients agree with TRL's: {'yes' if agrees else 'no'}.")
print(f"Mean reward: {first:.2f} in the first two steps, {last:.2f} in the last two.")
print("It worked." if agrees and last > first else "It did not work this time: try another SEED.")

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | other completions than the text describes | another processor, version or `SEED`, so sampling takes another path | nothing: the argument is the same, the numbers are yours. A branch that no text takes is left out |
# | all rewards of the first group are equal | then there is nothing to learn from this group | another `SEED` |
# | gradients differ by more than 0.0001 | a cell was run twice, so the LoRA is no longer where the trainer started | restart the kernel and run all cells from the top |
#
# ## Exercises
#
# **1. Luck at a fork** (five minutes, with a pencil). Give one point for *Canberra* and nothing else. Then each of the five *Canberra* texts has the advantage +0.72, and each of the others −1.21. The full stop (2 of the 5 texts, $p$ = 0.51) and the comma (3 of the 5, 0.47) now earn the same. Count each token the same, as in the tree. What does the rule of section 6 do with the two?
#
# <details><summary>Answer</summary>
#
# The sum at the fork is 3.62. Full stop: 1.45 − 0.51 · 3.62 = −0.40. Comma: 2.17 − 0.47 · 3.62 = +0.47. Nothing rewards a comma. It was drawn a little more often than its probability says, and that is enough. That is noise: more completions average it out. With $1/T_i$ the two short texts count three times as much, and both signs turn. That second effect is no noise: more completions leave it, because it favours short texts. It is a bias.
# </details>
#
# **2. A reward that goes wrong** (ten minutes). Let `reward` return 1.0 for a text with a comma, and 0.0 for any other. Predict the curve and the last group of section 8, restart and run all. Then do the same with the word *kangaroo*.
#
# <details><summary>Answer</summary>
#
# The reward for a comma rises from 0.6 to 1.0 in step 4, and then stays at about 0.8: a curve like a success. But in the last group only two of the eight texts name a capital. One begins *Imagine a world without tweets, online gaming, or panoramic telescopes.* The reward did not ask for an answer, so the answer was lost. For the capital of France, where the model said *Paris*, it now says *L'Étoile, la Cité, la Nation, la Géologie*.
#
# None of the eight says *kangaroo*: all rewards, advantages and the gradient are 0, and the curve stays flat. **It can only do more often what it already does sometimes.** (Section 7 then divides 0 by 0 and says no.)
# </details>
#
# **3. Dr. GRPO, checked by TRL** (twenty minutes). *Dr. GRPO* ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)) leaves two divisions out. Advantages are not divided by the standard deviation, and the sum over the tokens of *every* completion is divided by 24, the most that we sample, instead of its own length. Change `advantages_of` and `grpo_loss`, add `loss_type="dr_grpo"`, `scale_rewards="none"` and `max_completion_length=24` to `same` in section 7, restart and run all, until both gradients agree again. What does the change mean if there are many prompts?
#
# <details><summary>Answer</summary>
#
# `return rewards - rewards.mean()`, and as the last line of the loss `return ((per_token * mask).sum(dim=1) / 24).mean()`. Dividing by 24 makes long texts weigh more. (Section 5 then prints a difference from section 4, which still divides by each length.) All eight advantages were divided by the same 0.59; with many prompts each group is divided by *its own* number. Seven rewards of 1.00 and one of 1.01 give an advantage of 2.41 with the division, and 0.01 without. So a difference of a hundredth pushes as strongly as a real success.
# </details>
#
# ## Next
#
# * Let the kit do all this, and test whether it worked: [the quickstart](00_quickstart.ipynb), if you have not done it yet. Which setting to turn, and when: [Train](04_train.ipynb).
# * Our reward can be cheated: *"Canberra? Melbourne!"* earns everything. Find such loopholes before you train: [rewards](02_rewards.ipynb).
# * A simpler relative: keep only the good samples and fine-tune on them (*rejection sampling*). It has no negative weights, so a bad text is never pushed down directly, only displaced by good ones.
# * Papers: [GRPO](https://arxiv.org/abs/2402.03300), clipping [from PPO](https://arxiv.org/abs/1707.06347), [the ratio before the KL](https://arxiv.org/abs/2512.02556).
#
# @NEIGHBOURS@
