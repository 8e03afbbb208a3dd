// What the steps of pruning are called in records and reports, in words.

export const RULES = {
  space: "all expressions and tile sizes",
  rule1: "rule 1: no two alike",
  rule2: "rule 2: no partial intermediates",
  rule3: "rule 3: little padding",
  rule4: "rule 4: fits fast memory",
  distinct: "equal programs merged",
  split: "with loops in parts",
  lowered: "under every setting of the knobs",
};
