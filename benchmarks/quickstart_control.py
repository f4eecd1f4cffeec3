"""Is the quickstart's gain in sums only a better beginning of the answer?

    python benchmarks/quickstart_control.py

The example in each prompt begins its answer with `<reasoning>`, and a trained model always does.
This asks the original model the quickstart's held-out questions twice, greedily: as it is, and with
that tag written at the start of its answer. It prints how many last numbers are the right sum.
Numbers: docs/evidence/quickstart_seeds.md.
"""

from __future__ import annotations

import re

import grpo_nb as gn

BATCH = 16


def main() -> None:
    settings = gn.preset("cpu")
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings=settings, tokenizer=tokenizer)

    import torch  # below load_model: Unsloth wants to be imported first

    prompts = [
        tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        for row in task.holdout
    ]
    for beginning in ("", "<reasoning>\n"):
        answers = []
        for first in range(0, len(prompts), BATCH):
            texts = [prompt + beginning for prompt in prompts[first : first + BATCH]]
            inputs = tokenizer(
                texts,
                return_tensors="pt",
                padding=True,
                padding_side="left",
                add_special_tokens=False,
            )
            limit = settings.max_completion_length
            with torch.no_grad(), model.disable_adapter():
                ids = model.generate(**inputs, do_sample=False, max_new_tokens=limit)
            written = ids[:, inputs["input_ids"].shape[1] :]
            answers += tokenizer.batch_decode(written, skip_special_tokens=True)
        right = 0
        for row, answer in zip(task.holdout, answers, strict=True):
            numbers = re.findall(r"\d+", answer)
            right += numbers[-1:] == [row["answer"]]
        print(f"beginning {beginning!r}: {right} of {len(answers)} last numbers are right")


if __name__ == "__main__":
    main()
