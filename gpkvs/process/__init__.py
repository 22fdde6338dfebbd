"""The process: its end, its forks, its memory and threads, the machine under it, failpoints."""
