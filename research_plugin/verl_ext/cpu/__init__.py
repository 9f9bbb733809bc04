"""veRL without an accelerator: platform, training engine and vLLM worker for ``trainer.device=cpu``."""
