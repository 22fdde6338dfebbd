"""`gpkvs bitflip`: damaged stores are refused or answered correctly, never wrongly."""
