"""LoRA beside SmolLM2 in bf16 on ragged chats, beside TRL's SFTTrainer with PEFT: real tokens per second, and memory.

As `train_trl.py`, with the weights frozen in bf16 on both sides and adapters of rank 16 in fp32 beside every matrix of
the layers.
"""

from train_trl import main

if __name__ == "__main__":
    main(__file__, __doc__, lora=True)
