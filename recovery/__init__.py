"""What happens after a crash: start-up recovery, and the proof that it works."""
