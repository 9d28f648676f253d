"""Numbers that stay finite: bad steps are skipped and explained, what is not finite is counted where it arises."""
