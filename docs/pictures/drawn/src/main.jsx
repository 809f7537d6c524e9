// Draws one dashboard with Grafana's UI components: ?board=run&run=NAME&from=UNIX&to=UNIX. The title says `ready` when it is drawn.
import { useLayoutEffect } from 'react';
import { createRoot } from 'react-dom/client';
import {
  applyFieldOverrides, createTheme, dateTime, FieldType, LoadingState, standardFieldConfigEditorRegistry, ThemeContext,
  toDataFrame,
} from '@grafana/data';
import { BarGauge, BarGaugeDisplayMode, BigValue, BigValueColorMode, GlobalStyles, LegendDisplayMode, PanelChrome, TimeSeries } from '@grafana/ui';

const boards = import.meta.glob('../../../../dashboards/*.json', { eager: true, import: 'default' });
const asked = new URLSearchParams(location.search);
const board = boards[`../../../../dashboards/${asked.get('board')}.json`];
const from = Number(asked.get('from')), to = Number(asked.get('to'));
const run = asked.get('run') ?? '', rows = (asked.get('rows') ?? '').split('|').filter(Boolean);
const WIDTH = 1560, CELL = WIDTH / 24, ROW = 34;
const theme = createTheme({ colors: { mode: asked.get('theme') ?? 'dark' } });
const step = Math.max(1, Math.round((to - from) / 240));

const plain = (id) => ({ id, path: id, name: id, process: (v) => v, shouldApply: () => true });
const custom = (id) => ({ ...plain('custom.' + id), path: id, isCustom: true });
standardFieldConfigEditorRegistry.setInit(() => [
  ...['unit', 'min', 'max', 'decimals', 'displayName', 'color', 'thresholds', 'mappings', 'noValue', 'links'].map(plain),
  ...['lineWidth', 'fillOpacity', 'drawStyle', 'stacking', 'spanNulls', 'axisPlacement', 'showPoints'].map(custom),
]);

const filled = (text) => text.replaceAll('$__rate_interval', '20s').replaceAll('$__range_s', `${Math.round(to - from)}`).replaceAll('$__range', `${Math.round(to - from)}s`)
  .replaceAll('"$run"', `"${run}"`).replace(/"\$(group|node)"/g, '".*"');

async function series(expression) {
  const q = new URLSearchParams({ query: filled(expression), start: from, end: to, step });
  const answer = await (await fetch(`/api/v1/query_range?${q}`)).json();
  if (answer.status !== 'success') throw new Error(`${expression}: ${answer.error}`);
  return answer.data.result;
}

const named = (legend, labels) => (legend ?? '').replace(/\{\{(\w+)\}\}/g, (_, label) => labels[label] ?? '');
const times = Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, i) => (from + i * step) * 1000);

async function frames(panel) {
  const found = [];
  for (const target of panel.targets) {
    for (const one of await series(target.expr)) {
      const at = new Map(one.values.filter(([, v]) => v !== 'NaN').map(([t, v]) => [Math.round(t * 1000), Number(v)]));
      const displayName = named(target.legendFormat, one.metric) || panel.title;
      const values = times.map((t) => at.get(t) ?? null);
      found.push(toDataFrame({ refId: target.refId ?? 'A', fields: [
        { name: 'Time', type: FieldType.time, values: times },
        { name: displayName, type: FieldType.number, labels: one.metric, config: { displayName }, values },
      ] }));
    }
  }
  const defaults = { color: { mode: panel.type === 'timeseries' ? 'palette-classic' : 'thresholds' }, ...panel.fieldConfig?.defaults };
  defaults.custom = { lineWidth: 1, showPoints: 'auto', ...defaults.custom };
  return applyFieldOverrides({
    data: found, fieldConfig: { defaults, overrides: panel.fieldConfig?.overrides ?? [] },
    fieldConfigRegistry: standardFieldConfigEditorRegistry, replaceVariables: (s) => s, theme, timeZone: 'utc',
  });
}

async function marks() {
  const found = [];
  for (const mark of board.annotations.list) {
    for (const one of await series(mark.expr)) {
      let last = 0;
      for (const [t] of one.values) {
        if (t - last > step * 1.5) found.push({ t, colour: mark.iconColor, text: named(mark.titleFormat, one.metric) });
        last = t;
      }
    }
  }
  return found;
}

const newest = (frame) => frame.fields[1].values.filter((v) => v !== null && !Number.isNaN(v)).at(-1);

function Marks({ config, found }) {
  useLayoutEffect(() => {
    config.addHook('draw', (u) => {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.setLineDash([4, 3]);
      for (const { t, colour } of found) {
        const x = Math.round(u.valToPos(t * 1000, 'x', true));
        ctx.strokeStyle = theme.visualization.getColorByName(colour);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
      ctx.restore();
    });
  }, [config]);
  return null;
}

function lines(data, found, width, height) {
  if (!data.length) return <Empty />;
  const range = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: 'now-1h', to: 'now' } };
  const legend = { displayMode: LegendDisplayMode.List, placement: 'bottom', calcs: [], showLegend: true };
  return <TimeSeries width={width} height={height} frames={data} timeRange={range} timeZone="utc" legend={legend} options={{}}>
    {(config) => <Marks config={config} found={found} />}
  </TimeSeries>;
}

function number(data, width, height) {
  const value = data.length ? newest(data[0]) : undefined;
  if (value === undefined) return <Empty />;
  return <BigValue width={width} height={height} theme={theme} colorMode={BigValueColorMode.Value} value={data[0].fields[1].display(value)} />;
}

function bars(panel, data, width, height) {
  const shown = data.filter((f) => newest(f) !== undefined).sort((a, b) => newest(b) - newest(a)).slice(0, 8);
  if (!shown.length) return <Empty />;
  const most = panel.fieldConfig?.defaults?.max ?? Math.max(...shown.map(newest));
  return shown.map((frame) => {
    const field = frame.fields[1], value = { ...field.display(newest(frame)), title: field.config.displayName };
    const each = Math.min(40, height / shown.length);
    return <div key={value.title} style={{ height: each }}>
      <BarGauge theme={theme} width={width} height={each - 6} orientation="horizontal" displayMode={BarGaugeDisplayMode.Gradient}
        value={value} field={{ ...field.config, min: 0, max: most }} display={field.display} />
    </div>;
  });
}

const Empty = () => <div style={{ padding: 20, color: theme.colors.text.secondary }}>No data</div>;

async function main() {
  const found = await marks();
  const drawn = [];
  let row = '', skipped = 0, top = null;
  for (const panel of board.panels) {
    if (panel.type === 'row') row = panel.title;
    if (rows.length && !rows.includes(row)) continue;
    const { x, y, w, h } = panel.gridPos;
    top ??= y;
    const place = { position: 'absolute', left: x * CELL, top: (y - top) * ROW + skipped, width: w * CELL - 8, height: h * ROW - 8 };
    if (panel.type === 'row') {
      drawn.push(<div key={'row' + row} style={{ ...place, width: WIDTH, font: '500 16px sans-serif', color: theme.colors.text.primary }}>{row}</div>);
      continue;
    }
    const data = await frames(panel);
    const inside = { timeseries: (a, b) => lines(data, found, a, b), stat: (a, b) => number(data, a, b), bargauge: (a, b) => bars(panel, data, a, b) };
    drawn.push(<div key={panel.id ?? panel.title + y} style={place}>
      <PanelChrome title={panel.title} width={place.width} height={place.height} loadingState={LoadingState.Done}>{inside[panel.type]}</PanelChrome>
    </div>);
  }
  const height = Math.max(...drawn.map((d) => d.props.style.top + d.props.style.height)) + 20;
  createRoot(document.getElementById('r')).render(
    <ThemeContext.Provider value={theme}><GlobalStyles />
      <div style={{ background: theme.colors.background.canvas, padding: 16, minHeight: height }}>
        <div style={{ position: 'relative', height, width: WIDTH }}>{drawn}</div>
      </div>
    </ThemeContext.Provider>,
  );
  setTimeout(() => { document.title = 'ready'; }, 2000);
}

main().catch((error) => { document.title = 'error'; document.body.innerText = error.stack; });
