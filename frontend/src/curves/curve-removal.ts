/** What the × beside a curve removes. A view has series and runs, not single curves: this says which one goes. */

import type { Curve } from "../api";
import { formatSeries, NONE, parseSeries } from "../view";

export interface Removal {
  text: string;
  series: string[];
  runs: string[];
}

/** With a single series, another run's curve removes that run; otherwise it removes its series, for all runs and ranks. */
export function removal(curve: Curve, label: string, series: readonly string[], runs: readonly string[]): Removal {
  if (series.length === 1 && runs.includes(curve.run))
    return {
      text: `Remove the run ${curve.run.split("/").pop()} from the charts`,
      series: [...series],
      runs: runs.filter((run) => run !== curve.run),
    };
  const gone = formatSeries(curve);
  const left = series.filter((each) => {
    const name = parseSeries(each);
    return formatSeries({ ...name, statistic: name.statistic || curve.statistic }) !== gone;
  });
  const whose = runs.length ? " of all runs" : typeof curve.rank === "number" ? " of all ranks" : "";
  return {
    text: `Remove ${whose ? curve.target : label}${whose}`,
    series: left.length ? left : [NONE],
    runs: [...runs],
  };
}
