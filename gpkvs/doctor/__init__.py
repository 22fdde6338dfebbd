"""What a machine gives a store in a folder, what is wrong, and what mends it (`gpkvs doctor`).

Each module looks at one part of the machine and returns facts; `gpkvs.doctor.examine` joins them. Nothing is changed
but for one probe file, which is removed. What cannot be looked at is said, and never guessed.
"""
