"""What a generation's completions show of the policy and of the reward: summed by group, added up over ranks."""
