/** Numbers, times and counts as text. */

const THIN = "\u2009";

/** A value in four digits; NaN and Inf are spelled out. */
export function number(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "Inf" : "−Inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text =
    size >= 1e6 || size < 1e-3
      ? Number(value.toPrecision(digits - 1)).toExponential()
      : Number.isInteger(value)
        ? whole(value)
        : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−").replace("e−", "e-").replace("e+", "e");
}

/** A count with thousands separators. */
export function whole(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return Math.round(value)
    .toString()
    .replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** A count in a few letters: 1.24 M. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  for (const [size, unit] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e4, "k"],
  ] as const)
    if (Math.abs(value) >= size) return `${Number((value / (unit === "k" ? 1e3 : size)).toPrecision(3))}${THIN}${unit}`;
  return whole(value);
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(size) < 1024 || unit === "TiB") return `${Number(size.toPrecision(3))}${THIN}${unit}`;
    size /= 1024;
  }
  return "–";
}

/** How long: 42 s, 3 min 5 s, 2 h 14 min, 3 d 4 h. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds === 0) return `0${THIN}s`;
  if (seconds < 1e-3) return `${Number((seconds * 1e6).toPrecision(3))}${THIN}µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))}${THIN}ms`;
  if (seconds < 10) return `${Number(seconds.toPrecision(2))}${THIN}s`;
  const total = Math.round(seconds);
  if (total < 60) return `${total}${THIN}s`;
  if (total < 3600) return pair(total, 60, "min", 1, "s");
  if (total < 86400) return pair(total, 3600, "h", 60, "min");
  return pair(total, 86400, "d", 3600, "h");
}

function pair(total: number, big: number, bigUnit: string, small: number, smallUnit: string): string {
  const rest = Math.floor((total % big) / small);
  const head = `${Math.floor(total / big)}${THIN}${bigUnit}`;
  return rest ? `${head} ${rest}${THIN}${smallUnit}` : head;
}

/** How long ago, relative to `now` (both in Unix seconds). */
export function ago(then: number | null | undefined, now: number): string {
  if (then === null || then === undefined) return "–";
  const seconds = Math.max(0, now - then);
  if (seconds < 45) return "just now";
  if (seconds < 5400) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  if (seconds < 60 * 86400) return `${Math.round(seconds / 86400)} days ago`;
  return moment(then).slice(0, 10);
}

/** Local date and time without seconds; empty for times outside the calendar. */
export function moment(then: number | null | undefined): string {
  const date = new Date((then ?? NaN) * 1000);
  if (Number.isNaN(date.getTime())) return "–";
  const two = (value: number) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

/** A value with its unit. */
export function measured(value: number | null | undefined, unit: string): string {
  if (unit === "bytes" || unit === "B") return bytes(value);
  if (unit === "s" || unit === "seconds") return duration(value);
  if (unit === "share") return percent(value);
  if (unit === "%") return value === null || value === undefined ? "–" : `${number(value, 3)}${THIN}%`;
  if (unit.endsWith("/s")) return `${Math.abs(value ?? 0) >= 1e4 ? count(value) : number(value)}${THIN}${unit}`;
  return unit ? `${number(value)}${THIN}${unit}` : number(value);
}

export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  const value = share * 100;
  return `${value > 0 && value < 1 ? "<1" : value >= 99.95 || value < 10 ? Number(value.toFixed(1)) : Math.round(value)}${THIN}%`;
}

export function plural(amount: number, noun: string, many = `${noun}s`): string {
  return `${whole(amount)} ${amount === 1 ? noun : many}`;
}

/** Steps of a column or a range. */
export function steps(first: number, last: number): string {
  return first === last ? `step ${whole(first)}` : `steps ${whole(first)} – ${whole(last)}`;
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** A short form of a power of ten. */
export function power(value: number): string {
  const exponent = Math.log10(value);
  if (Math.abs(exponent - Math.round(exponent)) > 1e-6) return number(value, 2);
  const rounded = Math.round(exponent);
  if (rounded >= -2 && rounded <= 3) return number(value);
  const digits = Array.from(String(Math.abs(rounded)), (digit) => RAISED[Number(digit)]);
  return `10${rounded < 0 ? "⁻" : ""}${digits.join("")}`;
}

/** A run's progress. Steps are counted from 0, so after step 239 all 240 are done. */
export function stepsDone(step: number | null, total: number | null): string {
  if (step === null) return "no step yet";
  if (!total) return `step ${whole(step)}`;
  if (step >= total) return `step ${whole(step)}, beyond the announced ${whole(total)}`;
  return `${whole(step + 1)} of ${plural(total, "step")}`;
}

/** The label of a plain number: its name in words, with its unit. */
export function scalarTitle(target: string): string {
  const known: Record<string, string> = { lr: "learning rate", step: "step time", waiting: "wait time" };
  const unit = target.endsWith("_seconds") ? " time, seconds" : target.endsWith("_bytes") ? ", bytes" : "";
  const name = unit ? target.slice(0, target.lastIndexOf("_")) : target;
  return (Object.hasOwn(known, name) && !unit ? known[name]! : name.replaceAll("_", " ")) + unit;
}
