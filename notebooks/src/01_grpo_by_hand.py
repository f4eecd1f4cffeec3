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
# One prompt, eight completions, one update of a real language model, with nothing hidden. By the end you have a working GRPO
# loss in six lines of PyTorch, you have checked it against the trainer that most people use, and you have watched the
# model's reward rise within eight steps.
#
# **You need** Python, and a rough idea of what a language model does. **You do not need** any reinforcement learning.
#
# About 3 minutes on two idle CPU cores (and an hour of reading), under 5 GB of memory and 0.3 GB of disk. No GPU needed. The model is SmolLM2-135M:
# small, fast and often wrong, which is exactly what we want here.
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
    ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], "#767676"
)
plt.rcParams.update({"axes.facecolor": "none", "font.size": 11, "figure.figsize": (7, 3), **grey})
InlineBackend.instance().print_figure_kwargs = {"facecolor": "none", "bbox_inches": "tight"}
left = [{"selector": "th, td", "props": "text-align: left"}]

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
# <details><summary>Where GRPO comes from, and the words that other texts use</summary>
#
# Chat models were first tuned with *RLHF*: people compared answers, a second network learned to predict what they prefer (a *reward
# model*), and PPO trained on its scores. For mathematics and code a program can check the answer, so no reward model is needed. GRPO was
# published for mathematics in 2024 (still with reward models) and became known through DeepSeek-R1 in 2025. Its sibling R1-Zero learned
# long chains of reasoning from checked answers and a reward for the format alone.
#
# Other texts say *policy* for the model, *action* for a token, *rollout* for a completion, and *on-policy* for sampled from the current
# weights.
# </details>
#
# "How far above the average" is called the **advantage**. For completion $i$ with reward $r_i$ it is
#
# $$A_i = \frac{r_i - \text{mean}(r)}{\text{std}(r) + 0.0001}$$
#
# The 0.0001 only prevents a division by zero.
#
# ![One GRPO step: the model writes four completions to the question for the capital of Australia. Their rewards 1.5, 1.0, 1.0 and 0.5 become the advantages +1.22, 0, 0 and -1.22. The first is pushed up, the last is pushed down.](../docs/grpo.png)
#
# ## 1. One prompt, eight completions
#
# ***sample** → advantage → log-probability → loss → clipping and KL → step → check → repeat*
#
# Now with the real model. `apply_chat_template` wraps the question in the markers that the model was trained with, and
# `generate` samples eight answers of at most 24 tokens (a token is a word or a piece of one). With `temperature=1.0` and
# `top_k=0` it uses the model's own probabilities. The loss below needs that.
#
# A **reward** is any function that turns a completion into a number. Ours gives one point for *Canberra* without *Sydney*, and half a point for at
# most eight words. When you read the table, cover its last column and score the eight yourself first.

# %%
question = [{"role": "user", "content": "What is the capital of Australia?"}]
prompt = tokenizer.apply_chat_template(
    question, add_generation_prompt=True, return_tensors="pt", return_dict=True
).to(model.device)
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
# * The group decides. In the picture the mean was 1.0, here it is 0.81: the same reward of 1.0 gets 0 there and +0.32 here.
# * The advantages of a group add up to zero: some completions gain at the expense of others.
# * Where all rewards are equal, every advantage is exactly 0. The model learns nothing from that prompt, whether all answers were
#   perfect or all were wrong. This is a common reason why a GRPO run does not get anywhere.
# </details>
#
# **Only the distance to the group counts: a reward above zero can still be pushed down, and a group with equal rewards teaches nothing.**
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
# ## 3. How likely was each completion?
#
# *sample → advantage → **log-probability** → loss → clipping and KL → step → check → repeat*
#
# "Make a completion more likely" needs a number for *how likely*. A language model gives a probability to every possible next
# token, and the probability of a whole completion is the product of the probabilities of its tokens. Products of many small
# numbers are awkward, so we take logarithms, which turn the product into a sum:
#
# $$\log p(\text{completion}) = \sum_t \log p(\text{token}_t)$$
#
# A log-probability of 0 means certain, −0.7 means one in two, −2.3 means one in ten. The model returns a *logit* $z$ for each of
# its 49,152 tokens, and the log-probability of token $k$ is $z_k - \log \sum_j e^{z_j}$: the function `logsumexp`.
#
# One detail trips up nearly everyone: the output at position $t$ is the prediction for position $t+1$. That is why the slice
# begins one place before the completion.
#
# **You should see** that the model is fairly certain of each word up to *is* (80 to 98 %), and undecided where it matters: which city
# (66 %), and whether the sentence ends after it (51 %). These are the places where it can learn something.


# %%
def token_log_probs(completions):
    """Return the log-probability of each token of each completion, shape (completions, tokens)."""
    repeated = prompt["input_ids"].cpu().expand(len(completions), -1)
    ids = torch.cat([repeated, completions], dim=1).to(model.device)
    logits = model(input_ids=ids).logits[:, prompt_length - 1 : -1].cpu()
    chosen = logits.gather(-1, completions[:, :, None])[:, :, 0]
    return chosen - logits.logsumexp(dim=-1)


def probability_of(branch, parent, log_probs):  # for section 6
    """Return the probability that a completion goes on from the text `parent` to `branch`."""
    row = [text.startswith(branch) for text in texts].index(True)
    begin, end = (len(tokenizer(part)["input_ids"]) for part in (parent, branch))
    return log_probs[row, begin:end].sum().exp().item()


log_probs = token_log_probs(completions)
mask = (completions != tokenizer.pad_token_id).float()  # 0 for the padding after a short completion
best = int(advantages.argmax())
best_tokens = completions[best][mask[best] == 1]
shown = log_probs[best][mask[best] == 1].detach()
print(f"{texts[best]}  Sum {shown.sum():.2f}: one time in {(-shown.sum()).exp():.0f}")
tokens = [repr(tokenizer.decode(token)) for token in best_tokens]
pandas.DataFrame({"token": tokens, "probability": shown.exp(), "log-probability": shown}).round(3).T

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
# * Multiply by the advantage: positive pushes up, negative pushes down.
# * Average over the group. The minus sign is there because optimizers minimise.
#
# This is the **policy gradient**, known as REINFORCE since 1992.
#
# If you have fine-tuned a model, you know this loss: with all $A_i = 1$ it is the cross-entropy of supervised fine-tuning on these eight
# texts. GRPO changes two things. The model writes the texts itself, and each text gets a weight. A negative weight says: write this
# less often.
#
# The value of the loss means nothing by itself. What we need is its **gradient** $\nabla$: for each of the LoRA weights a number that says in
# which direction the loss grows, and how fast. (The mask leaves out the padding.)
#
# **Why does this raise the expected reward?** A text with the probability $p$ is drawn in a share $p$ of the samples. Each time it is pushed by
# its reward times $\nabla \log p = \nabla p / p$. The two $p$ cancel: a rare text is drawn seldom and pushed hard. So the average push is
# $\sum r \nabla p$, the slope of the expected reward $\sum r p$. This needs samples from the model's own probabilities.
#
# The table below follows the formula. The best completion, *The capital of Australia is Canberra.*, has eight tokens and the log-probability
# −1.81 (section 3). So its mean is −1.81 / 8 = −0.23, and its term is −1.16 · −0.23 = +0.26. The loss is the mean of the eight terms.
#
# **Why subtract the mean?** It does not change the average push, only the noise:
#
# <details><summary>The proof, and an example with numbers</summary>
#
# Subtract the same number $b$ from all rewards. The average push changes by $b \sum \nabla p$. That is 0, because the probabilities add up
# to 1, whatever the weights are. ([What a group of eight and the division by $T_i$ change in this
# argument](../docs/reference/losses.md#why-the-mean-may-be-subtracted).)
#
# It changes single pushes a lot. Let the right answer have the probability 0.2 and the reward 11, and the other answer the reward 10:
#
# | sampled | how often | gradient of its log-probability | push with 11 and 10 | push with the mean, 10.2, subtracted |
# | --- | --- | --- | --- | --- |
# | the right answer | 0.2 | 5 ∇p | 55 ∇p | 4 ∇p |
# | the other one | 0.8 | −1.25 ∇p | −12.5 ∇p | 0.25 ∇p |
# | **average** | | | **∇p** | **∇p** |
#
# Without the mean, each draw of the wrong answer makes the *wrong* answer more likely (−12.5 ∇p), and only the average over many samples is
# right: single pushes scatter by 27 ∇p. With the mean subtracted, both rows push towards the right answer, and they scatter by 1.5 ∇p.
# With rewards of 1 and 0 the mean matters less: [a lesson of its own](a1_algorithms.ipynb). PPO trains a second model for that mean; GRPO
# needs none.
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
table = {"advantage": advantages, "mean log-probability": mean_log_probs}
table = pandas.DataFrame({**table, "term": -advantages * mean_log_probs, "completion": texts})
table.style.format(precision=2, escape="html").set_table_styles(left)

# %% [markdown]
# ## 5. The loss, complete: ratio and clipping
#
# *sample → advantage → log-probability → loss → **clipping and KL** → step → check → repeat*
#
# **On a first reading run the two code cells of this section and go on with section 6.** In the first step the ratio is 1 and the KL is 0, so
# the gradient is that of section 4. Come back when you take more than one step on a batch.
#
# Sampling is the slow part, so one would like to use a batch of completions for more than one step. After the first step,
# however, they come from a model that no longer exists. Two ideas of PPO handle this.
#
# **Ratio.** $\rho = p_{\text{new}} / p_{\text{old}}$ is how much more likely a token is now than when it was sampled. If it is now
# twice as likely, the new model would write it twice as often, so it counts twice. The **gain** of a token is $\rho A$, and the loss is
# minus the average gain.
#
# **Clipping.** Without it, further steps on the same batch would push the same token on and on. Once a token has moved by more than
# 20 % (`epsilon`) *in the direction that its advantage asks for*, moving it further gains nothing, so it is no longer pushed. A
# token that has moved the wrong way is never clipped, so it is always pushed back.
#
# ![Left: the gain of a token against the ratio. With advantage +1 it rises and is flat above 1.2; with advantage -1 it is flat below 0.8 and falls. Right: the KL cost of a token against d. It is 0 at d = 0 and positive elsewhere.](../docs/loss.png)
#
# Left: the gain of a token, with its two flat parts. The right half belongs to the KL term below. By default each batch is used for one
# step, and then $\rho = 1$. You need this part as soon as you set `num_iterations` to more than 1.
#
# The code takes the smaller of the clipped and the unclipped gain. **Predict before you run:** of four tokens, two have the advantage +1 and
# two −1. In each pair one has $\rho = 0.7$ and one $\rho = 1.3$. Which two are no longer pushed? The column *push* is the gradient of the
# gain with respect to the ratio.
#
# <details><summary>What you should see</summary>
#
# A push of 0 for the second and the third token: each has moved 30 % in the wanted direction. The other two moved the wrong way and are
# still pushed with full force. Replace `minimum` by `maximum`, a mistake that is easy to make: then these two are cut instead, and nothing
# brings them back. No reward curve would show you that.
# </details>

# %%
example_ratio = torch.tensor([0.7, 1.3, 0.7, 1.3], requires_grad=True)
example_advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
unclipped = example_ratio * example_advantage
clipped = example_ratio.clamp(0.8, 1.2) * example_advantage
gain = torch.minimum(unclipped, clipped)
(push,) = torch.autograd.grad(gain.sum(), example_ratio)
columns = {"advantage": example_advantage, "ratio": example_ratio.detach()}
pandas.DataFrame({**columns, "gain": gain.detach(), "push": push}).round(1)

# %% [markdown]
# ### The KL term
#
# A third part keeps the model near its start. The *Kullback–Leibler divergence* (KL) measures how far two probability distributions are
# apart: the average of $\log p - \log p_{\text{ref}}$ over what the model samples. It is 0 if they are equal. The *reference* is the model
# we started with, here the same model with its LoRA switched off.
#
# Let $d = \log p_{\text{ref}} - \log p$ for one token. The average of $-d$ is the KL. So why not add $-d$ to the loss? Take two tokens with the
# probabilities 0.8 and 0.2. Each draw of the first pushes its logit down by 0.2, each draw of the second pushes it up by 0.8. On average
# $-0.8 \cdot 0.2 + 0.2 \cdot 0.8 = 0$: the model is pulled nowhere.
#
# The loss uses $e^d - d - 1$ instead (right half of the figure above). Its average is the KL too, because $e^d - 1$
# averages to 0. And it has its minimum at $d = 0$. A token
# that became more likely is pushed down, a token that became rarer is pushed up. For example, a token at 0.8 that had 0.5 costs 0.095, and one
# at 0.2 that had 0.5 costs 0.584. TRL also multiplies by $\rho$, which the first GRPO did not.
#
# `beta` says what KL costs: 0 in many recent recipes, 0.04 in the first GRPO paper.
# [What four values do to the training of section 8](../docs/reference/losses.md#what-beta-costs).
#
# <details><summary>The KL term in numbers, and why the ratio stands before it</summary>
#
# Two tokens are possible. The model gives them 0.8 and 0.2, the reference 0.5 and 0.5. The KL is
# $0.8 \cdot \ln(0.8/0.5) + 0.2 \cdot \ln(0.2/0.5) = 0.376 - 0.183 = 0.193$. The plain $-d$ of the two tokens is $+0.47$ and
# $-0.92$: its average is the KL, but a single sample may be negative. $e^d - d - 1$ is $0.095$ for the first and $0.584$ for the second,
# and $0.8 \cdot 0.095 + 0.2 \cdot 0.584 = 0.193$ as well. In general $e^d - 1$ averages to zero, because
# $\sum p \cdot p_{\text{ref}} / p = \sum p_{\text{ref}} = 1$. So adding it changes no average.
#
# **The right value is not enough: the gradient must be right too.** The gradient of the KL with respect to the logit of the first token is
# 0.22. Put into a loss on samples, the plain $-d$ has an average gradient of **0** (the average of $\nabla \log p$ is always 0): it pulls nowhere, and only noise is left.
# $e^d - d - 1$ has 0.30, which is the gradient of KL(ref ‖ model), the divergence the other way round. With $\rho$ in front of it
# the average gradient is 0.22, also where $\rho = 1$.
# </details>
#
# The output below says: the loss is 0, and the gradient is that of the first version. Section 6 explains why.


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
print(f"loss {first_loss:.4f}")
print(f"gradient: length {first_gradient.norm():.4f}")
print(f"difference from the gradient of the first version: {difference:.1g} of its length")

# %% [markdown]
# ## 6. One step
#
# *sample → advantage → log-probability → loss → clipping and KL → **step** → check → repeat*
#
# Move each LoRA weight a little against its gradient: `weight -= 0.1 * gradient`. That is what SGD does.
#
# **Where people stumble:** the complete loss is **0** before the step, and not −0.654. The ratio is 1 and the KL is 0, so what is left is minus
# the mean of the advantages. But a loss of zero is not a gradient of zero! The gradient is that of section 4, because
# $\nabla\rho = \nabla\log p$ where $\rho = 1$. So do not judge a GRPO run by its loss. Look at the reward.
#
# ### Which token was good?
#
# GRPO does not know: all tokens of a completion get the same advantage. But completions with the same beginning share their first tokens, and
# there only the sum of their advantages counts. So think of the eight texts as a tree:
#
# ![The eight completions as a tree. All begin with "The": sum 0. Canberra: 5 of 8, sum +3.26, and after it the full stop with +2.31 and the comma with +0.95. Sydney: 2 of 8, sum -1.89.](../docs/tree.png)
#
# *Box:* how many of the eight texts pass it, and the sum of their advantages (green above 0, orange below; the two blue boxes are the
# question below). *Line,* where given: the probability of this continuation.
#
# On *The* the advantages cancel. Where the texts part, they do not: *Canberra* is pushed up, *Sydney* down. **The comparison within the group
# finds the words that matter.**
#
# **Predict before you run:**
#
# 1. The full stop (+2.31) and the comma (+0.95) are both pushed up, and their probabilities add up to nearly 1. Can both win? The cell prints
#    the probabilities of the forks before and after the step.
# 2. The bars show how much more or less likely each whole completion became. Is a bar twice as long where the advantage is twice as large?
#
# <details><summary>What you should see</summary>
#
# The full stop goes from 0.51 to 0.58, and the comma from 0.47 to 0.39, although its sum was positive. The three texts with the
# comma become more likely all the same. Up to the comma they gain only × 1.06 (1.09 × 1.17 × 0.83). After it each text has no
# rival, so its +0.32 acts alone.
#
# The green bars (advantage above zero) point to the right and the orange ones to the left. A label such as × 1.58 means that this
# exact completion is now 1.58 times as likely. The length of a bar does not follow the advantage alone, for three reasons:
#
# * The gradient of $\log p$ is small for a token that is likely already. A short right answer has few tokens, most of them likely.
# * The bar adds up the changes of all tokens. A rambling text has many unlikely ones: so −1.37 gives × 0.03, and +1.16 only × 1.58.
# * Completions share weights, and many share their first words, so a push on one text also moves the others: +0.32 gives × 1.45, nearly as
#   much as +1.16.
#
# Would a second step on this batch be clipped? *Sydney* went from 0.31 to 0.20. Its ratio is about 0.65, below 0.8, and its advantage is
# negative: it would no longer be pushed. *Canberra* has 0.77 / 0.66 = 1.17 and would still be pushed.
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
change = ((log_probs - old) * mask).sum(dim=1).detach()
order = advantages.argsort()  # the best last, because barh begins at the bottom
colours = ["#C75800" if advantages[i] < 0 else "#008A65" for i in order]
trunk = "The capital of Australia is"
city = f"{trunk} Canberra"
parents = {trunk: "", f"{trunk} Sydney": trunk, city: trunk, f"{city}.": city, f"{city},": city}
for branch, parent in parents.items():
    if any(text.startswith(branch) for text in texts):  # with another SEED it may be missing
        before, after = (probability_of(branch, parent, one) for one in (old, log_probs))
        print(f"{branch:37} {before:.2f} before the step, {after:.2f} after it")
figure, axes = plt.subplots(figsize=(7, 3.4))
bars = axes.barh(range(8), change[order], color=colours)
axes.bar_label(bars, [f"× {factor:.2f}" for factor in change[order].exp()], padding=4)
names = [texts[i][:40] + "…" * (len(texts[i]) > 40) for i in order]
axes.set_yticks(range(8), [f"{name}  {advantages[i]:+.2f}" for name, i in zip(names, order)])
axes.set(title=f"loss {first_loss:.3f} → {second_loss:.3f}", xlabel="change of log-probability")
axes.margins(x=0.16)

# %% [markdown]
# **A fork is a small group of its own.** On average a text with the comma has 0.32, and a text with *Canberra* 0.65. So the comma is below
# the average of its fork and falls, although its own sum is positive. With the model's probabilities in place of counts, a branch is pushed by
# its sum minus its probability times the sum at the fork. Expect the direction, not the size, because all branches share their weights:
#
# | branch | its sum − its probability · the sum at the fork | measured |
# | --- | --- | --- |
# | The capital of Australia is (from the start) | 1.37 − 0.64 · 0 = +1.37 | 0.64 → 0.70 |
# | Canberra | 3.26 − 0.66 · 1.37 = +2.36 | 0.66 → 0.77 |
# | Sydney | −1.89 − 0.31 · 1.37 = −2.31 | 0.31 → 0.20 |
# | full stop | 2.31 − 0.51 · 3.26 = +0.65 | 0.51 → 0.58 |
# | comma | 0.95 − 0.47 · 3.26 = −0.58 | 0.47 → 0.39 |
#
# <details><summary>Where the rule comes from, and what the length changes</summary>
#
# It is the slope of $\sum A \log p$ along the logit of the branch. Our loss also divides by $T_i$, so a token of a short text counts more: on
# *The* a push of +0.15 is left, against +0.33 on *Canberra*. By default `gn.train` divides all tokens by one number, and the pushes on *The*
# cancel exactly.
# </details>
#
# **Try the rule: luck at a fork** (five minutes, with a pencil). Give one point for *Canberra* and nothing else. Then each of the five *Canberra* texts has
# the advantage +0.72, and each of the others −1.21. The full stop (2 of the 5 texts, probability 0.51) and the comma (3 of the 5, 0.47) now earn
# the same. Divide all tokens by one number, as `gn.train` does. What does the rule do with the two?
#
# <details><summary>Answer</summary>
#
# The sum at the fork is 3.62. Full stop: 1.45 − 0.51 · 3.62 = −0.40. Comma: 2.17 − 0.47 · 3.62 = +0.47. Nothing rewards a comma. It was drawn
# a little more often than its probability says, and that is enough. This is the noise of a small group: more completions or more prompts
# average it out. (In the loss of section 4 short texts count three times, and there the signs turn.)
# </details>
#
# ## 7. Is this really GRPO?
#
# *sample → advantage → log-probability → loss → clipping and KL → step → **check** → repeat*
#
# Do not take our word for it. TRL's `GRPOTrainer` is what most people train with, and what `gn.train` is built on. Hand it the
# same model, the same eight completions and the same reward. Let it take two steps on them, and compare its losses and
# gradients with ours: before the first step, where nothing has moved, and after it, where ratio, clipping and KL take part.
#
# Normally the trainer samples for itself. The argument `rollout_func` replaces the sampling, and ours returns the completions from above.
#
# **You should see** two lines that agree to about five digits. The rest is rounding. Such a check finds mistakes that no reward
# curve shows. Try it: delete `ratio *` in front of the KL term, restart the kernel and run all cells. The first line still agrees,
# because the model does not yet differ from its reference. The second one does not.

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
# A training is the same thing in a loop, with fresh completions in every step. All the pieces are there, so this cell is the
# whole of GRPO on one screen, for one prompt. With several prompts it is the same loop: the advantages are computed within each
# prompt's group, and the loss is averaged over all.
#
# We start again from the original model, and use AdamW, as real runs do. SGD moves a weight by the learning rate times its gradient. AdamW
# moves each weight by about the learning rate itself, so that rate is much smaller: 0.0002. Each batch is used for one step only, so the ratio
# is 1 and clipping does nothing here.
#
# **You should see** three curves, and eight completions of the last step:
#
# * The mean reward rises from about 0.8 to about 1.5, the most that a completion can earn.
# * The KL, how far the model has moved from its start, jumps: it is measured on eight completions, and one unlikely text is enough.
# * The standard deviation of the eight rewards falls. Where it is 0, all advantages are 0 and the step teaches nothing. Watch it in your own runs.
# * In the last group the rambling is gone, and nearly all completions are the same. So this prompt has nothing more to teach.
#
# Has the model learned geography? Nothing here shows it. It gave the right answer in five of the eight samples above, and now gives it nearly
# always, to this one prompt. A real training does the same over hundreds of prompts, so that what is learned helps with prompts
# that the model has not seen.

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
names = ["mean reward", "KL per token (nats)", "standard deviation"]
history = pandas.DataFrame(history, range(1, STEPS + 1), names)
panels = {"subplots": True, "layout": (1, 3), "figsize": (9, 2.4), "legend": False, "title": names}
history.plot(**panels, style="o-", color=["#007FC6", "#C75800", "#797979"], xlabel="step")
plt.tight_layout()
print("The last group:", *texts, sep="\n")

# %% [markdown]
# ## Did it work?
#
# Two questions decide. Do our losses and gradients agree with TRL's? And did the mean reward rise? The first does not depend on luck.
# The second may, so we compare two steps with two. It is the reward of the one prompt that was trained on: whether a
# model got better at new questions is what [the quickstart](00_quickstart.ipynb) tests.
#
# First ask once more what section 3 asked: how likely is the best completion of the first group, token by token? **Predict before you
# run:** which two probabilities have changed most?
#
# <details><summary>What you should see</summary>
#
# *Canberra* went from 66 % to nearly 100 %, and the full stop after it from 51 % to 90 %. These are two forks of
# the tree. (*The* and the end token rise too, from about 0.8. One likely reason for *The*: dividing by $T_i$ leaves a
# small push on it, see the end of section 6.) The model now writes this sentence five times out of six, and wrote it one time in six before.
# </details>

# %%
agrees = all(difference < 1e-4 for difference in differences)
mean_rewards = history["mean reward"]
first, last = mean_rewards.iloc[:2].mean(), mean_rewards.iloc[-2:].mean()
with torch.no_grad():
    now = token_log_probs(best_tokens[None])[0]
print(f"The best completion of the first group: one time in {(-now.sum()).exp():.1f}")
probabilities = {"token": tokens, "before": shown.exp(), "now": now.exp()}
display(pandas.DataFrame(probabilities).round(2).T)
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
# **1. Your own reward** (ten minutes). Let `reward` return 1 for a text with a comma. Predict the curve and the last group of section 8, restart and run
# all. Then do the same with the word *kangaroo*.
#
# <details><summary>Answer</summary>
#
# Five of the eight texts have a comma, so the reward can rise. None says *kangaroo*: all rewards are 0, all advantages are 0, the gradient is 0, and the
# curve stays flat. **It can only do more often what it already does sometimes.** (Section 7 then divides 0 by 0 and says no.)
# </details>
#
# **2. Dr. GRPO, checked by TRL** (twenty minutes). *Dr. GRPO* ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)) leaves two divisions out. Advantages
# are not divided by the standard deviation, and the sum over the tokens of *every* completion is divided by 24, the most that we sample, instead of
# its own length. Change `advantages_of` and `grpo_loss`, add `loss_type="dr_grpo"`, `scale_rewards="none"` and `max_completion_length=24` to `same`
# in section 7, restart and run all. You are done when both gradients agree again. What would the change mean in a training with many prompts?
#
# <details><summary>Answer</summary>
#
# `return rewards - rewards.mean()`, and as the last line of the loss `return ((per_token * mask).sum(dim=1) / 24).mean()`. Dividing by 24 makes long
# texts weigh more. (The cell with `grpo_loss` then prints a difference from the first version, which still divides by each length.)
# All eight advantages were divided by the same 0.59; with many prompts each group is divided by *its own* number:
#
# | rewards of the group | largest advantage, divided | not divided |
# | --- | --- | --- |
# | four of eight are 1, the others 0 | 0.94 | 0.50 |
# | one of eight is 1, the others 0 | 2.47 | 0.88 |
# | seven are 1.00, one is 1.01 | 2.41 | 0.01 |
#
# Division makes rare successes count more, which can be welcome. But a difference of a hundredth then pushes as strongly as a real success.
# </details>
#
# ## Next
#
# * Let the kit do all this, with curves, held-out questions and a test of whether it worked: [the quickstart](00_quickstart.ipynb).
# * Our reward can be cheated: *"Canberra? Melbourne!"* earns everything. Find such loopholes before you train: [rewards](02_rewards.ipynb).
# * `grpo`, `dr_grpo`, `dapo` and `bnpo` differ in how they average over tokens: [all losses](../docs/reference/losses.md).
# * The papers: GRPO ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)), clipping from PPO ([arXiv:1707.06347](https://arxiv.org/abs/1707.06347)), and
#   the ratio before the KL term ([arXiv:2512.02556](https://arxiv.org/abs/2512.02556)), which the first GRPO did not have.
#
# @NEIGHBOURS@
