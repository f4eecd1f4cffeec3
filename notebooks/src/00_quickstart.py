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
# # Train a small model, and measure whether it improved
#
# In a few minutes a language model with 135 million parameters learns to answer sums in a fixed format. You then test whether its sums got
# better too, or only their form.
#
# The model never sees the solution of a training question. It gets only a score for what it wrote, and learns from these scores with GRPO
# (*group relative policy optimization*). Supervised fine-tuning needs a good answer to every prompt. GRPO needs only a program that checks
# answers. So GRPO helps where checking is easier than writing: code with tests, a fixed format, replies with rules. Sums are our
# example because you can check them by eye.
#
# ![Good answers to 96 held-out sums, before and after one training: correct 9 and 77, in the format 16 and 96, correct anywhere 53 and 77.](../docs/quickstart_result.png)
#
# *How to read it:* 96 sums that the model was never trained on; the number on a bar counts them. *In the format*: the answer is where we asked for it. *Correct anywhere*: the last
# number in the text is right, wherever it is. *Correct*: both. Two more trainings with other random numbers (*seeds*)
# [gave the same picture](../docs/evidence/quickstart_seeds.md).
#
# How to read on: write each prediction down, look at the output of the next cell, and only then open the fold. You need Python, and no
# reinforcement learning. This is the first of four: here you train and test (half an hour of reading), [GRPO by hand](01_grpo_by_hand.ipynb) shows every line of
# the method (an hour, needs gradients), [Rewards](02_rewards.ipynb) how rewards are cheated, and [Your own data](03_your_data.ipynb) is for your task.
#
# About 8 minutes on two idle CPU cores, under 5 GB of memory and 0.6 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# You can leave everything as it is. `auto` chooses the settings for your machine: on a CPU the small model that came with the
# installation, on a GPU a larger one whose weights take 4 bits each.
#
# <details><summary>To change something</summary>
#
# * `CHANGES = {"max_steps": 50}` changes a setting by its name. Which one to turn, and when: the last table of
#   [Train](04_train.ipynb).
# * In Colab, `DRIVE = "grpo_nb/quickstart"` keeps the runs on your Google Drive. If Colab takes the machine back, run all cells again, and
#   the training is resumed.
# * To use your own data instead of the sums, see [Your own data](03_your_data.ipynb).
# </details>

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
RUN_NAME = None  # @param {"type": "raw"}
EXPORT_TO = "exports/quickstart"  # @param {"type": "string"}
TASK = {"source": "arithmetic"}  # @param {"type": "raw"}
DRIVE = ""  # @param {"type": "string"}

# %% [markdown]
# ## The model and the task
#
# `load_model` loads the model and puts a *LoRA* on it: small matrices next to the large frozen weights. Only the LoRA is trained.
#
# `load_task` makes sums of numbers up to 20. The prompt asks for a fixed format: a short reasoning between one pair of tags, and
# the answer between another. Each prompt contains one worked example, because without one a model this small never writes a tag,
# and then there is nothing to reward ([Rewards](02_rewards.ipynb) shows it). Some questions are *held out*: the model is never
# trained on them, and in the end they show whether it learned anything.
#
# You should see how many prompts are trained on, how many are held out, and the first prompt as the model gets it.

# %%
run_root = gn.machine.choose_run_folder(DRIVE, report=print)
# While the model trains, 16 held-out questions are answered at the start, at every seventh step and at the end.
held_out = {"holdout_every": 7, "holdout_questions": 16}
settings = gn.preset(PRESET, **{"run_root": run_root, **held_out, **CHANGES})

model, tokenizer = gn.load_model(settings, report=print)
task = gn.load_task(**TASK, settings=settings, tokenizer=tokenizer)
task

# %% [markdown]
# ## GRPO in one minute
#
# The model writes several texts to the same prompt, its *completions*, each token by token (a *token* is a word or a piece of one). A **reward**
# function that you write gives each completion a number. Some completions of the group earn more than others. The better ones should become more
# likely, and the worse ones less likely. So subtract the mean of the group from each reward, and divide the difference by the standard deviation of
# the group (with n − 1). The result is the **advantage**:
#
# $$A_i = \frac{r_i - \text{mean}(r)}{\text{std}(r) + 0.0001}$$
#
# An example: the capital of Australia. The right city earns 1 point, and a short answer half a point.
#
# ![One GRPO step: the model writes four completions to one question. Their rewards 1.5, 1.0, 1.0 and 0.5 become the advantages +1.22, 0, 0 and -1.22. The first is pushed up, the last is pushed down.](../docs/grpo.png)
#
# "Sydney." earns 0.5. That is more than zero, but less than the mean of its group. So it is pushed down: it becomes less likely.
#
# If you have fine-tuned a model, you know the rest. One GRPO step is a step of fine-tuning on the model's own completions. Each completion has
# its advantage as a weight. Then the model writes new ones. It learns only from texts that it wrote itself, so **it can only do more often what it already
# does sometimes.**
#
# If all texts of a group earn the same, all advantages are 0: there is nothing to prefer, and nothing is learned.
#
# [GRPO by hand](01_grpo_by_hand.ipynb) shows every line of it; the method is from [arXiv:2402.03300](https://arxiv.org/abs/2402.03300).
#
# ## The rewards
#
# Three rewards are added up. A correct answer is worth 2, the complete format 1, and each of the four tags 1/8, so a
# completion earns at most 3.5. Why a reward for single tags? At first only a few completions have the whole format. A completion with
# three of the four tags earns a little more than one with two, so the model can improve tag by tag. The weight is small, because a model can
# collect such points without ever being right.
#
# An answer counts as correct only between its tags, because a program must know where to read it. You should see three totals: 3.5 for a right
# answer in the format, 0.375 for the same without its last tag (remember this line), and 0 for a bare "The answer is 7."
#
# A reward is a function. In the simplest cases `correctness` does the same as this one (exercise 3 shows where they differ):
#
# ```python
# def correct_sum(completions, answer, **columns):
#     scores = []
#     for completion, gold in zip(completions, answer):
#         text = gn.rewards.completion_text(completion)
#         match = re.search(r"<answer>\s*(\d+)\s*</answer>", text)
#         scores.append(1.0 if match and int(match[1]) == int(gold) else 0.0)
#     return scores
# ```
#
# `correctness` scores 0 or 1 too, and its weight is 2. It also reads other ways to write a number and other kinds of answers, and gives 0 to a text that goes on after its answer. `exact_format` returns 1 if the
# four tags are there once, in order, with nothing outside them. `partial_format` returns the share of the tags that are there once. Your own
# functions work as well ([Rewards](02_rewards.ipynb)).

# %%
rewards = [
    gn.rewards.correctness(weight=2.0),
    gn.rewards.exact_format(weight=1.0),
    gn.rewards.partial_format(weight=0.5),
]
in_format = task.format.render("2 + 5 = 7", "7")
examples = [in_format, in_format.replace("</answer>", ""), "The answer is 7."]
gn.score(rewards, examples, {"answer": "7"})

# %% [markdown]
# ## Is the task hard enough?
#
# If the model already answers every question correctly, all completions earn the same reward, and there is nothing to learn from them. So
# the next cell (in Colab its code is folded away) takes the first level of difficulty at which fewer than two thirds of the sampled answers are correct.
#
# On a CPU the printed line names level 0, the easiest: 11 % of the sampled answers are correct. An answer without tags counts as wrong, so 11 % may mean
# bad sums or missing tags. [Before and after](#Before-and-after) separates the two.

# %% cellView="form" jupyter={"source_hidden": true}
from grpo_nb.checks import choose_level

harder = gn.tasks.ARITHMETIC_LEVELS[1:] if TASK == {"source": "arithmetic"} else ()
levels = [task]
for level in harder:
    levels.append(gn.load_task(**TASK, **level, settings=settings, tokenizer=tokenizer))
choice = choose_level(model, tokenizer, levels, rewards, settings)
task = choice.task
print(choice.sentence)

# %% [markdown]
# ## Train
#
# In each of the 42 steps the model writes 8 completions to each of 2 prompts, so a CPU run uses 84 of the 224 training prompts. The
# figure updates itself.
#
# **Predict before you run:** which is learned first, the format or the right sum? Both are rewarded from step 1, and a correct
# answer is worth twice as much. Write down a perfect answer to *2 + 10* and one to *18 + 6*. What is the same in both, and what is not? All
# 84 questions are trained on. Which part do they all push in the same direction: the one that is the same or the one that differs?
#
# The training takes about six minutes. While you wait: exercise 1 at the end of the page (two minutes, with a pencil) needs only the formula above.
#
# <details><summary>The same call in TRL</summary>
#
# `gn.train` builds TRL's `GRPOConfig` and `GRPOTrainer`. By hand, with the values of the preset `cpu`:
#
# ```python
# config = GRPOConfig(
#     "runs/plain", max_steps=42, num_generations=8, per_device_train_batch_size=16, max_completion_length=48,
#     learning_rate=1e-4, lr_scheduler_type="constant_with_warmup", warmup_steps=4, max_grad_norm=0.2,
#     beta=0.04, loss_type="bnpo", temperature=1.0, reward_weights=[2.0, 1.0, 0.5], bf16=False,
# )
# trainer = GRPOTrainer(model, rewards, config, train_dataset=task.train, processing_class=tokenizer)
# trainer.train()
# ```
#
# `model`, `rewards` and `task.train` are the ones from above. [Scale out](a2_scale_out.ipynb) writes a script in which these are plain, too.
# `num_generations` is the size of a group, and 16 completions a step are 2 groups. `gn.train` adds the figure, the alerts, the held-out
# questions, the stored completions and a faster path on a CPU. [Which argument is which](../docs/guide/from_other_tools.md).
# </details>

# %%
resume = "auto" if DRIVE else None
run = gn.train(model, tokenizer, task, rewards, settings, name=RUN_NAME, resume=resume)

# %% [markdown]
# ### Read the figure
#
# *Left:* the total that the model is trained on. *Middle:* its three parts. *Right:* 16 held-out questions. Pale lines show each step, strong ones the mean of ten steps.
#
# <details><summary>Answer to the prediction</summary>
#
# The format comes first. It is near its maximum from about step 12 on (pale line), and *correctness* follows. One reason is trivial: an answer counts only between its tags, so
# *correctness* cannot come first. So compare two curves of the right panel that do not need each other:
#
# | held-out, 16 questions | before | step 7 | step 14 | step 28 |
# | --- | --- | --- | --- | --- |
# | *in the format* (needs no sum) | 19 % | 100 % | 100 % | 100 % |
# | *correct anywhere* (needs no tags) | 44 % | 50 % | 75 % | 94 % |
#
# In these two curves the sums are slower as well. (Once all answers are in the format, the curve of *correct* covers that of *correct anywhere*.) The four tags are the same in all perfect answers, so the pushes of different groups can add up. The right number is
# another one for each question. (With 16 questions, from 44 to 50 % is one question.)
# </details>
#
# <details><summary>More about the figure: pale lines, greedy answers, KL, the alert</summary>
#
# * *Strong and pale lines:* a pale line shows each step, a strong one the mean of ten steps, so it shows a rise late. Read from the strong line *whether* a
#   curve rises, and from the pale one *when*.
# * *The dips:* each step has only two questions, so a dip is mostly luck with them. In steps 1 to 4 the learning rate is also low (*warm-up*).
# * *Greedy and sampled:* the held-out questions are answered *greedily*: each token is the most likely one. The other two panels show
#   *sampled* answers: an unlikely token is picked now and then. With 16 questions the end, 94 %, is rough: the band reaches from 72 to 99 %. All 96
#   held-out questions are asked in *Before and after*.
# * *KL:* how far the model's token probabilities have moved from those of the original model. A small penalty in the loss (`beta`) makes moving away costly. Below the figure it is the mean of the last third of the steps, in the progress bar that of the last step alone.
# * *The alert* of step 17, *collapse*: half of the completions repeat another one of their group. If these are right, as the curve suggests, there
#   is little left to learn from these questions. Repeated wrong answers would be a fault: the model no longer tries anything else.
# * *Groups that teach nothing:* `run.metrics["frac_reward_zero_std"]` is the share of groups in which all completions earn the same. It is 4 % in the
#   first third of the steps, then 39 % and 57 %. So fewer and fewer groups teach anything, and harder questions would teach more. At the end the strong lines
#   even fall. Each step has only two questions, so this can be luck. This run does not prove it, but the held-out curve stays at 94 %.
# * *The loss* is not in the figure. In GRPO it stays near zero and says nothing about progress.
# </details>
#
# ## What the model wrote
#
# **Predict before you run** (on a CPU): the mean of the early group is 0.98. Two of its completions have the whole format and a wrong answer.
# Two others have the right answer, and their last tag is missing. What total does each earn (section *The rewards*), and which are
# pushed up?
#
# You see a group of step 5, the first with the full learning rate, and a group of step 14, when the format is learned.
# The first lines compute the advantages of the early group again, with the formula from *GRPO in one minute*.
#
# <details><summary>What you should see</summary>
#
# GRPO sees only the advantages. Two things follow, as you see on a CPU.
#
# 1. **It raises what you score.** In the early group the answers `21` and `11` are wrong and are pushed up (+0.44 each), because they are in the
#    format. Two completions that end in `<answer> 12` are right and are pushed down (−0.52 each), because their last tag is missing.
#    So apart from the best completion, which has both, form counts more in this group than the right answer.
# 2. **All tokens of a completion get the same advantage, so pushes cancel where texts are equal.** In the later group all eight texts are equal up to
#    `<answer>`. On these words six texts push up with 6 × 0.540 = 3.24, and two push down with 2 × 1.620 = 3.24: nothing remains. The first place
#    where they differ is the answer, and there a push remains: up on 24, down on what the other two wrote. So the group finds the word that matters.
# </details>

# %%
early_group = run.step(min(5, settings.max_steps)).groups[-1]
later_group = run.step(min(14, settings.max_steps)).groups[0]
totals = early_group.table["total"]
by_formula = (totals - totals.mean()) / (totals.std() + 0.0001)
difference = (by_formula - early_group.table["advantage"]).abs().max()
print(f"Early group: mean {totals.mean():.2f}, standard deviation {totals.std():.2f}.")
print(f"Largest difference between the formula and the trainer: {difference:.6f}")
display(early_group, later_group)

# %% [markdown]
# **The same score, the opposite push.** Compare a wrong answer in the right format in the two groups above:
#
# | | early group | later group |
# | --- | --- | --- |
# | it earns | 1.5 | 1.5 |
# | mean of its group | 0.98 | 3.0 |
# | advantage | +0.44 | −1.62 |
#
# The reward did not change, the group did. So a tidy wrong answer is taught at first and untaught later. The rewards and their weights are the
# same. The model has improved, and with it the mean of the group.
#
# ## Before and after
#
# The training reward is the number that the model was trained to raise, so a rise alone does not prove a better model. The held-out
# questions can show it: answered greedily, with the LoRA switched off and on. Read three rows:
#
# | row | needs the tags | needs the right sum | before |
# | --- | --- | --- | --- |
# | *correct* | yes | yes | 9 % |
# | *in the format* | yes | no | 17 % |
# | *correct anywhere* (the last number of the completion) | no | yes | 55 % |
#
# **Predict before you run:** suppose that the training teaches only the format, and nothing about sums. What would *correct* be afterwards?
#
# <details><summary>What you should see</summary>
#
# About 55 %, the share of right sums with or without tags. It is 80 %. So of the 71 points gained in *correct*, about 55 − 9 = 46 come from the
# format, and 80 − 55 = 25 from the sums. In numbers, 24 of the 96: 29 became right and 5 became wrong.
# </details>

# %%
comparison = gn.compare(run, task)
display(comparison)
answers = comparison.transcripts()
was_right, is_right = answers["before_anywhere"].eq(True), answers["after_anywhere"].eq(True)
learned = answers[~was_right & is_right]
print(f"{len(learned)} sums became right, and {(was_right & ~is_right).sum()} became wrong.")
numbers_before = learned["before"].str.findall(r"\d+")
had_it = [gold in numbers for gold, numbers in zip(learned["answer"], numbers_before)]
print(f"{sum(had_it)} of the {len(learned)} had the right number in the text before.")
table = learned[["question", "before", "after"]].head().replace("\n", " ", regex=True)
left = [{"selector": "th, td", "props": "text-align: left"}]
table.style.format(escape="html").hide().set_table_styles(left)

# %% [markdown]
# **Is the gain in the sums real?** Six doubts, and what we know about each. **Predict before you read the table:** which of the first five explains
# the largest part of the 24 gained sums, and how many of them?
#
# | doubt | what we did | result |
# | --- | --- | --- |
# | Were these 96 questions lucky? | 29 + 5 = 34 sums changed. Suppose that each were a coin toss. | A split as uneven as 29 to 5 comes less than once in 1,000 cases. This is the *p-value*: how often chance alone changes so much. |
# | Was this training lucky? | We trained on two other seeds, which also have other held-out sums. | One went from 54 % to 72 %, the other from 53 % to 80 %. The two end 8 points apart, by luck alone. So do not conclude anything from such a difference between two single runs. With 14 steps only one of three seeds showed a clear gain. |
# | Was only the first tag missing? Perhaps the original model adds as well, once it has begun in the format. | We put `<reasoning>` at the start of the original model's answer. | Then it gets 58 sums right instead of 53. After the training it is 77. So the tag explains 5 of the 24 gained. |
# | Did it only copy more carefully? The early group has `2 + 10 = 12`, and then answers 21. | We looked for the right number in the 29 answers before (second printed line). | It was in none of them. |
# | Was 8 + 18 trained as 18 + 8? | We counted the sums whose swapped twin was trained: 19 of the 96. | Without a twin: 43 of 77 right before, 63 after (+20). With one: 10 of 19, then 14 (+4). So twins explain at most 4 of the 24. |
# | Would a cheaper way do the same, such as more examples in the prompt, or supervised training on the same 84 sums? | Not tested here. | Open. For sums, whose answers we have, supervised training is the natural rival. GRPO is for tasks whose answers you can check but not write. |
#
# The missing tag explains the most, 5 of 24. So on three seeds the gain is larger than luck explains. And in this run, neither the missing tag nor
# better copying nor remembered twins explains all of it. The numbers of rows 2, 3 and 5 were [measured outside this notebook](../docs/evidence/quickstart_seeds.md).
#
# **Can it answer what it never wrote?** *It can only do more often what it already does sometimes*, and yet 29 sums are new. The table shows *greedy*
# answers, one text for each question: the likeliest. In training the model *samples*. So we let the original model answer the five sums printed above 64
# times each, as in training. It wrote the right number 12, 6, 4, 1 and 3 times (measured outside this notebook). So it did know them sometimes, and
# training has made a rare answer the likeliest. All questions share one LoRA, so a step on one sum also changes the answers to others. The run does not
# show why this carries over to sums that were not trained.
#
# ## Ask your own question, and take the model with you
#
# `ask` puts any question to the model before and after the training. The first question below is harder than any in the training,
# where no number is above 20. `export_merged` adds the LoRA to the frozen weights, saves one ordinary model in `exports/quickstart`, next to this
# notebook, and checks in a separate process that it is the model you trained ([Export](06_export.ipynb) explains the checks).
# `AutoModelForCausalLM.from_pretrained("exports/quickstart")` loads it without this kit.
#
# You should see on a CPU that 17 + 25 was wrong before and is right now. That is one sum: try others. 6 + 7 was right before, so only its form
# is new.

# %%
has_learned = run.metrics["grad_norm"].max() > 0  # if not, there is nothing to export
exported = gn.export_merged(run, EXPORT_TO, overwrite=True) if has_learned else None
gn.ask(run, ["What is 17 + 25?", "What is 6 + 7?"])

# %% [markdown]
# ## Did it work?
#
# *It worked* needs two things. The reward rose by more than chance: if its values are put in a random order, such a rise is rare. And the
# held-out answers are better by a statistical test. If one is missing, the sentence says which one. It
# judges this run alone. If the model could already do the task, a message says so. That is not a failure.

# %%
assert run.status == "finished", run.status_sentence
assert not has_learned or exported.verification["passed"], "the export is not the trained model"
outcome = run.outcome(comparison)
if not outcome.has_worked and not choice.can_improve:
    print(f"The model could already do this before the training. {choice.sentence}")
print(outcome)

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *must not be imported before* | another import came first | restart the kernel and run from the top |
# | the reward stays flat | in every group all completions got the same total (`run.metrics["frac_reward_zero_std"]` is 1) | read `run.step(1)`. All right: a harder task. All wrong: an easier task, an example in the prompt, or partial credit. Never in the format: first [some supervised steps](../docs/guide/train.md) |
# | the kernel dies | out of memory | `CHANGES = {"per_device_train_batch_size": 8}` |
# | *exists, and a new run overwrites nothing* | runs are never overwritten | another `RUN_NAME`, or `None`: then the time of the start is the name |
#
# ## Exercises
#
# **1. A group by hand** (two minutes). A group of four has the totals 3.5, 0.5, 0.5 and 0.5. What are its advantages?
#
# <details><summary>Answer</summary>
#
# The mean is 1.25 and the standard deviation (with n − 1) is 1.5. The first gets (3.5 − 1.25) / 1.5 = +1.5, the others −0.5 each. Their sum is 0: one rare success is pushed up strongly, three failures are pushed down a little.
# </details>
#
# **2. Other weights** (five minutes). Paste this into a new cell. It computes the advantages of the two groups above, with the weight 2 of `correctness` and with 0.1. **Predict:** in which group does the weight matter?
#
# ```python
# for group in (early_group, later_group):
#     values = group.table[["correctness", "exact_format", "partial_format"]]
#     for weight in (2, 0.1):
#         totals = (values * [weight, 1, 0.5]).sum(axis=1)
#         print(weight, ((totals - totals.mean()) / totals.std()).round(2).tolist())
# ```
#
# <details><summary>Answer</summary>
#
# Only in the early one. With the weight 0.1 the right answer is hardly ahead of a wrong one in the format there: +1.29 against +1.14. In the later group only `correctness` differs, and the division by the standard deviation removes its weight: +0.54 and −1.62 both times.
# </details>
#
# **3. Cheat a reward** (five minutes). Paste `import re` and `correct_sum` from *The rewards* into a new cell, and below it the following lines.
# **Predict:** in which of the four do the two rewards disagree? Which text would a model learn that is trained on `correct_sum`?
#
# ```python
# texts = ["<answer>7</answer>", "<answer>7</answer> No, it is 9.", "<answer>7</answer><answer>8</answer>", "<answer>7.0</answer>"]
# gn.score([correct_sum, gn.rewards.correctness()], texts, {"answer": "7"})
# ```
#
# <details><summary>Answer</summary>
#
# In the last three. `correct_sum` sees only the first pair of tags, so it rewards the second and the third: the model may write on after its answer, and nothing stops it. It also refuses 7.0, which is right. [Rewards](02_rewards.ipynb) trains a model on such a loophole.
# </details>
#
# ## Next
#
# * See inside the training: [GRPO by hand](01_grpo_by_hand.ipynb).
# * Write your own reward, and learn how models cheat: [Rewards](02_rewards.ipynb).
# * Use your own data: [from a CSV to a trained model](03_your_data.ipynb). A real task on a GPU: [GSM8K](a3_gsm8k_gpu.ipynb).
# * Look at this run again later, without the model: `gn.open_run("runs/...").plot()` ([runs](../docs/guide/runs.md)).
#
# @NEIGHBOURS@
