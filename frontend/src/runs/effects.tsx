/** What mattered: how a result of the runs goes along with each setting in which they differ. */

import { useMemo, useState } from "preact/hooks";
import type { EffectRow, SettingEffects } from "../api";
import { css, RISING } from "../colors";
import { CLEARED, go, link, useView } from "../navigation";
import { Card, Choice, Empty, Waiting } from "../parts/basics";
import { useAnswer } from "../server";
import { useWidth } from "../theme";
import { number, plural } from "../format";
import { figures } from "./chooser";
import { makeAxis, type Axis } from "./scales";

const MOST_AXES = 8;
const HEIGHT = 300;
/** How far lines through one place are fanned out, in pixels. */
const FAN = 18;
const PAD = { top: 34, bottom: 18, side: 64 };

export function Effects(props: { runs: readonly string[] | null }) {
  const view = useView();
  const known = useAnswer("columns", {});
  const options = useMemo(() => figures(known.value?.columns ?? []), [known.value]);
  const result = view.result || usualResult(options.map(([key]) => key));
  const answer = useAnswer("effects", result ? { result, run: props.runs ?? [], where: view.where } : null);
  if (!known.value) return <Waiting answer={known} what="columns" />;
  if (!options.length)
    return (
      <Card>
        <Empty title="No logged number yet">Log a result such as val_loss to see which settings mattered.</Empty>
      </Card>
    );
  const found = answer.value;
  const chosen = found?.settings.find((each) => each.key === view.setting) ?? found?.settings[0];
  return (
    <>
      <section class="controls-bar" aria-label="Result">
        <div class="controls">
          <Choice label="Result" value={result} onChange={(next) => go({ result: next })} options={options} />
        </div>
      </section>
      {!found ? (
        <Waiting answer={answer} what="settings" />
      ) : !found.settings.length || !chosen ? (
        <Card>
          <Empty title="Nothing to compare">
            {plural(found.rows.length, "run")} with {found.title}; they differ in no hyper-parameter.
          </Empty>
        </Card>
      ) : (
        <>
          <Card title={`All settings and ${found.title}`}>
            <Parallel found={found} />
          </Card>
          <div class="two is-even">
            <Card title="What mattered most">
              <Ranking found={found} current={chosen.key} />
            </Card>
            <Card title={`${chosen.title} and ${found.title}`}>
              <Scatter found={found} at={found.settings.indexOf(chosen)} />
            </Card>
          </div>
        </>
      )}
    </>
  );
}

function usualResult(keys: readonly string[]): string {
  const best = keys.filter((key) => key.endsWith(":best"));
  const checked = best.filter((key) => /(^|[_/.])(val|valid|validation|eval|test)/i.test(key));
  return (
    checked.find((key) => key.includes("loss")) ??
    checked[0] ??
    best.find((key) => key === "loss:best") ??
    best[0] ??
    ""
  );
}

/** Better results are brighter. */
function resultColor(row: EffectRow, axis: Axis, isHigher: boolean | null): string {
  const place = axis.place(row.result) ?? 0;
  return css(RISING[Math.round(50 + 150 * (isHigher ? place : 1 - place))]!);
}

function resultAxis(found: SettingEffects): Axis {
  const values = found.rows.map((row) => row.result).filter((value): value is number => value !== null);
  const low = Math.min(...values);
  return makeAxis(values, false, low > 0 && Math.max(...values) / low > 20);
}

/** One line for each run, from setting to setting to the result. */
function Parallel(props: { found: SettingEffects }) {
  const { found } = props;
  const [measure, width] = useWidth();
  const [hovered, setHovered] = useState<string | null>(null);
  const shown = found.settings.slice(0, MOST_AXES);
  const result = useMemo(() => resultAxis(found), [found]);
  const axes = useMemo(
    () => [
      ...shown.map((setting, at) =>
        makeAxis(
          found.rows.map((row) => row.values[at]),
          setting.kind === "text",
          setting.is_log,
        ),
      ),
      result,
    ],
    // oxlint-disable-next-line react/exhaustive-deps -- `shown` follows from what was found
    [found, result],
  );
  const titles = [...shown.map((setting) => setting.title), found.title];
  const x = (at: number) => PAD.side + (at * Math.max(1, width - 2 * PAD.side)) / Math.max(1, axes.length - 1);
  const y = (place: number) => HEIGHT - PAD.bottom - place * (HEIGHT - PAD.top - PAD.bottom);
  // Lines that would lie on each other are fanned out, better results lower or higher as on their own axis.
  const order = useMemo(() => {
    const sorted = [...found.rows].sort((a, b) => (a.result ?? 0) - (b.result ?? 0));
    return new Map(sorted.map((row, index) => [row.run, index / Math.max(1, sorted.length - 1) - 0.5]));
  }, [found]);
  const line = (row: EffectRow) => {
    const points = axes.flatMap((axis, at) => {
      const place = axis.place(at < shown.length ? row.values[at] : row.result);
      return place === null
        ? []
        : [`${x(at).toFixed(1)},${(y(place) - (axis.isDiscrete ? FAN * order.get(row.run)! : 0)).toFixed(1)}`];
    });
    return points.join(" ");
  };
  const told = found.rows.find((row) => row.run === hovered);
  return (
    <div class="picture" ref={measure}>
      <svg
        width={width}
        height={HEIGHT}
        role="img"
        aria-label={`Parallel coordinates of ${plural(found.rows.length, "run")}: ${titles.join(", ")}`}
        onPointerLeave={() => setHovered(null)}
      >
        {found.rows.map((row) => (
          <polyline
            key={row.run}
            class={`parallel ${hovered === row.run ? "is-hovered" : hovered ? "is-faint" : ""}`}
            points={line(row)}
            stroke={resultColor(row, result, found.is_better_higher)}
            onPointerEnter={() => setHovered(row.run)}
            onClick={() => go({ ...CLEARED, run: row.run, screen: "home" })}
          />
        ))}
        {axes.map((axis, at) => (
          <g key={titles[at]} class="picture-axis">
            <line x1={x(at)} x2={x(at)} y1={y(0)} y2={y(1)} />
            <text x={x(at)} y={14} text-anchor="middle" class="picture-title">
              {titles[at]}
            </text>
            {axis.ticks.map((tick) => (
              <text
                key={tick.text}
                x={x(at) + (at === axes.length - 1 ? 7 : -7)}
                y={y(tick.at) + 4}
                text-anchor={at === axes.length - 1 ? "start" : "end"}
              >
                {tick.text}
              </text>
            ))}
          </g>
        ))}
      </svg>
      <p class="foot-note" aria-live="polite">
        {told
          ? `${told.name}: ${found.title} ${number(told.result)}`
          : `One line for each of ${plural(found.rows.length, "run")}, brighter where the result is better. ` +
            (found.settings.length > MOST_AXES ? `The ${MOST_AXES} settings that mattered most.` : "")}
      </p>
    </div>
  );
}

/** The settings by how much the result goes along with them. */
function Ranking(props: { found: SettingEffects; current: string }) {
  return (
    <>
      <ul class="ranking">
        {props.found.settings.map((setting) => (
          <li key={setting.key}>
            <button
              type="button"
              aria-pressed={setting.key === props.current}
              onClick={() => go({ setting: setting.key })}
            >
              <b>{setting.title}</b>
              <span class="ranking-bar" aria-hidden="true">
                <i style={{ width: `${100 * (setting.importance ?? 0)}%` }} />
              </span>
              <span>
                {setting.correlation !== null
                  ? `correlation ${setting.correlation > 0 ? "+" : "−"}${Math.abs(setting.correlation).toFixed(2)}`
                  : setting.share !== null
                    ? `${Math.round(100 * setting.share)} % of variance`
                    : "–"}
              </span>
            </button>
            {setting.same_as.length > 0 && <small>changes with {setting.same_as.join(", ")}</small>}
          </li>
        ))}
      </ul>
      <p class="foot-note">
        Rank correlation, which asks for no straight line; of texts the share of the variance between their values. It
        shows what goes together, not why.
      </p>
    </>
  );
}

/** One setting against the result: a dot for each run. */
function Scatter(props: { found: SettingEffects; at: number }) {
  const { found, at } = props;
  const setting = found.settings[at]!;
  const [measure, width] = useWidth();
  const [hovered, setHovered] = useState<EffectRow | null>(null);
  const across = useMemo(
    () =>
      makeAxis(
        found.rows.map((row) => row.values[at]),
        setting.kind === "text",
        setting.is_log,
      ),
    [found, at, setting],
  );
  const up = useMemo(() => resultAxis(found), [found]);
  const x = (place: number) => 70 + place * Math.max(1, width - 100);
  const y = (place: number) => HEIGHT - 34 - place * (HEIGHT - 54);
  return (
    <div class="picture" ref={measure}>
      <p>{setting.text}</p>
      <svg
        width={width}
        height={HEIGHT}
        role="group"
        aria-label={`Scatter of ${found.title} by ${setting.title}. ${setting.text}`}
      >
        {up.ticks.map((tick) => (
          <g key={tick.text} class="picture-axis is-grid">
            <line x1={x(0)} x2={x(1)} y1={y(tick.at)} y2={y(tick.at)} />
            <text x={58} y={y(tick.at) + 4} text-anchor="end">
              {tick.text}
            </text>
          </g>
        ))}
        {across.ticks.map((tick) => (
          <text key={tick.text} class="picture-label" x={x(tick.at)} y={HEIGHT - 12} text-anchor="middle">
            {tick.text}
          </text>
        ))}
        {found.rows.map((row) => {
          const place = across.place(row.values[at]);
          const height = up.place(row.result);
          if (place === null || height === null) return null;
          return (
            <a
              key={row.run}
              {...link({ ...CLEARED, run: row.run, screen: "home" })}
              aria-label={`${row.name}: ${number(row.result)}`}
            >
              <circle
                cx={x(place)}
                cy={y(height)}
                r={hovered === row ? 7 : 5}
                fill={resultColor(row, up, found.is_better_higher)}
                onPointerEnter={() => setHovered(row)}
                onPointerLeave={() => setHovered(null)}
              />
            </a>
          );
        })}
      </svg>
      <p class="foot-note" aria-live="polite">
        {hovered
          ? `${hovered.name}: ${found.title} ${number(hovered.result)}`
          : "A dot for each run; a click opens it."}
      </p>
    </div>
  );
}
