"""What is decided: order, placement, pre-emption, and why not. Pure; called live, by `explain`, and by replay."""
