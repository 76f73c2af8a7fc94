"""Tables in, predictions out: files of people and of their bags, checked whole, turned into features."""
