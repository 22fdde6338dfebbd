"""What planners and committers tell each other: write sets, reasons why a batch stops, what it lacks, its measures."""
