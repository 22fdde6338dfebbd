"""What happens after a crash: start-up recovery, and drills that cause crashes on purpose."""
