"""What people have becomes bags: instances, ids, tables of shares, and shares that need mending."""
