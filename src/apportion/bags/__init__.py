"""From what people have to bags: groups of instances with known class proportions."""
