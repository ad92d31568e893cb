// Sampled figures as the charts take them.

// The values of one series as points: each in the middle of its step.
export function pointsOf(view, values) {
  return values.map((value, place) => [view.begins + (place + 0.5) * view.step_seconds, value]);
}
