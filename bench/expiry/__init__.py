"""How late expired keys are removed, beside redis."""
