"""Commands that prove: crashes, drills, damage, wear, consistency; and the demo."""
