"""Long seeded campaigns: pools that fill, age and drain for hours, and a ledger of what was played."""
