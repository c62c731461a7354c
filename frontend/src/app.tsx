/** Which screen is shown, and what all screens of a run share: the run itself and its stream of events. */

import { useEffect, useState } from "preact/hooks";
import type { Incident, RunHome } from "./api";
import { useHeard, useStream, wanted } from "./live";
import { useView } from "./navigation";
import { Empty, Waiting } from "./parts/basics";
import { Shell, TITLES } from "./parts/shell";
import { AlertsScreen } from "./screens/alerts";
import { ChangesScreen } from "./screens/changes";
import { CompareScreen } from "./screens/compare";
import { FiguresScreen } from "./screens/figures";
import { HomeScreen } from "./screens/home";
import { ModelScreen } from "./screens/model";
import { PrecisionScreen } from "./screens/precision";
import { RanksScreen } from "./screens/ranks";
import { RunsScreen } from "./screens/runs";
import { SeriesScreen } from "./screens/series";
import { SettingsScreen } from "./screens/settings";
import { useAnswer } from "./server";
import { useStore } from "./store";
import type { Screen } from "./view";

const SCREENS: Record<Screen, (props: { home: RunHome }) => preact.JSX.Element> = {
  home: HomeScreen,
  series: SeriesScreen,
  changes: ChangesScreen,
  alerts: AlertsScreen,
  ranks: RanksScreen,
  compare: CompareScreen,
  model: ModelScreen,
  settings: SettingsScreen,
  figures: FiguresScreen,
  precision: PrecisionScreen,
};

export function App() {
  const view = useView();
  return view.run ? <RunPage key={view.run} run={view.run} /> : <RunsPage />;
}

function RunsPage() {
  useEffect(() => void (document.title = "Runs · vario"), []);
  return (
    <Shell home={null}>
      <RunsScreen />
    </Shell>
  );
}

function RunPage(props: { run: string }) {
  const view = useView();
  const answer = useAnswer("run", { run: props.run });
  const home = useFresh(answer.value);
  const query = useStore(wanted);
  // Use the loaded state, not the live one: the end of a run is announced before the last numbers arrive, `bye` after.
  const told = answer.value?.state;
  const isOpen = told === "running" || told === "stalled";
  useStream(isOpen ? { run: props.run, cursor: answer.value?.cursor, ...query } : null);
  useHeard({ bye: answer.again, reset: () => window.dispatchEvent(new Event("server-back")) });
  useEffect(
    () => void (document.title = `${home?.name ?? "Run"} · ${TITLES[view.screen]} · vario`),
    [home?.name, view.screen],
  );
  const Screen = SCREENS[view.screen];
  return (
    <Shell home={home}>
      {home ? (
        <Screen home={home} />
      ) : answer.error?.status === 401 ? (
        <NoToken />
      ) : (
        <Waiting answer={answer} what="run" />
      )}
    </Shell>
  );
}

export function NoToken() {
  return (
    <Empty title="This page needs a token">
      Open the link that <code>vario serve</code> printed in the terminal: it ends with <code>?token=…</code>. The
      browser remembers it.
    </Empty>
  );
}

/** The loaded run, updated by live events. */
function useFresh(told: RunHome | null): RunHome | null {
  const [home, setHome] = useState(told);
  useEffect(() => setHome(told), [told]);
  useHeard({
    progress: (news) =>
      setHome((last) => {
        if (!last) return last;
        const values = new Map(news.vital.map((vital) => [vital.name, vital.value]));
        const vital = last.vital.map((each) => {
          const value = values.get(each.name);
          return value === undefined ? each : { ...each, value, spark: [...each.spark.slice(-59), value] };
        });
        return { ...last, ...news, vital };
      }),
    incident: (incident) => setHome((last) => last && { ...last, incidents: withIncident(last.incidents, incident) }),
  });
  return home;
}

function withIncident(known: Incident[], news: Incident): Incident[] {
  return [...known.filter((each) => each.id !== news.id), news].sort((a, b) => a.step - b.step);
}
